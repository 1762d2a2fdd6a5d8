//! Signatures of the Standard Webhooks scheme `v1`: HMAC-SHA256 over id, time and body, so that a receiver knows who
//! sent a message and that nobody changed it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The keys to sign with: several while one replaces another.
pub(super) struct Signer(Vec<Hmac<Sha256>>);

impl Signer {
    /// Takes secrets of the form `whsec_` and base64, with blanks between them. `None`: that is no such text. A key has
    /// 24 to 64 bytes.
    pub(super) fn new(secrets: &str) -> Option<Self> {
        let key = |secret: &str| {
            let key = STANDARD.decode(secret.strip_prefix("whsec_")?).ok()?;
            if (24..=64).contains(&key.len()) { Hmac::new_from_slice(&key).ok() } else { None }
        };
        let keys = secrets.split_whitespace().map(key).collect::<Option<Vec<_>>>()?;
        (!keys.is_empty()).then_some(Self(keys))
    }

    /// The value of `webhook-signature`: one signature for each key.
    pub(super) fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let signature = |key: &Hmac<Sha256>| {
            let mut mac = key.clone();
            mac.update(format!("{id}.{timestamp}.").as_bytes());
            mac.update(body);
            format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
        };
        self.0.iter().map(signature).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    /// The vector that the standard's own libraries are tested with.
    #[test]
    fn the_standards_example_is_signed_as_there() {
        let sign = |secrets: &str| {
            let signer = Signer::new(secrets).unwrap();
            signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b"{\"test\": 2432232314}")
        };
        let once = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(sign(SECRET), once);
        let twice = sign(&format!("{SECRET} whsec_{}", STANDARD.encode([7; 32])));
        assert!(twice.starts_with(&format!("{once} v1,")) && twice.len() == 2 * once.len() + 1, "{twice}");
    }

    #[test]
    fn secrets_have_one_form() {
        let short = format!("whsec_{}", STANDARD.encode([1; 23]));
        let long = format!("whsec_{}", STANDARD.encode([1; 65]));
        for bad in
            ["", "  ", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_!", &short, &long, &format!("{SECRET} x")]
        {
            assert!(Signer::new(bad).is_none(), "{bad}");
        }
    }
}
