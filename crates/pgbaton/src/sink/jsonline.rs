//! One message as one line of JSON: `id, topic, key, headers, created_at` and one of `json`, `text`, `base64`.

use std::io::Write;

use base64::display::Base64Display;
use base64::engine::general_purpose::{GeneralPurpose, STANDARD};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::message::{Message, Payload};

#[derive(Serialize)]
struct Line<'a> {
    id: &'a str,
    topic: &'a str,
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<Raw<'a>>,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    json: Option<Raw<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<Base64<'a>>,
}

/// Encoded as it is written, without a copy of its own.
struct Base64<'a>(Base64Display<'a, 'static, GeneralPurpose>);

impl Serialize for Base64<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// JSON that PostgreSQL has checked, passed on without being parsed again.
enum Raw<'a> {
    Json(&'a RawValue),
    /// Over several lines: white space between tokens becomes spaces. Within a string JSON has no raw line break.
    OneLine(Box<RawValue>),
}

impl Serialize for Raw<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Json(json) => json.serialize(serializer),
            Self::OneLine(json) => json.serialize(serializer),
        }
    }
}

fn raw(text: &str) -> Result<Raw<'_>, serde_json::Error> {
    if text.contains(['\n', '\r']) {
        RawValue::from_string(text.replace(['\n', '\r'], " ")).map(Raw::OneLine)
    } else {
        serde_json::from_str(text).map(Raw::Json)
    }
}

/// Bytes that the message's line takes, unless much of it must be escaped.
pub fn size_hint(message: &Message<'_>) -> usize {
    const NAMES: usize = 128;
    let payload = match message.payload {
        // In base64, which most are not: what stays unused is never touched.
        Payload::Bytes(bytes) => bytes.len().div_ceil(3) * 4,
        payload => payload.len(),
    };
    let around = message.id.len() + message.topic.len() + message.key.map_or(0, str::len);
    NAMES + around + message.headers.map_or(0, str::len) + payload
}

/// Appends a message as one line, with its line break.
///
/// # Errors
/// JSON that this program's parser refuses although PostgreSQL took it.
pub fn write(line: &mut Vec<u8>, message: &Message<'_>) -> Result<(), serde_json::Error> {
    let start = line.len();
    let (mut json, mut text, mut base64) = (None, None, None);
    match message.payload {
        Payload::None => {}
        Payload::Json(payload) => json = Some(raw(payload)?),
        Payload::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(payload) => text = Some(payload),
            Err(_) => base64 = Some(Base64(Base64Display::new(bytes, &STANDARD))),
        },
    }
    let content = Line {
        id: message.id,
        topic: message.topic,
        key: message.key,
        headers: message.headers.map(raw).transpose()?,
        created_at: message.created_at.to_string(),
        json,
        text,
        base64,
    };
    let written = serde_json::to_writer(&mut *line, &content);
    if written.is_err() {
        line.truncate(start);
    }
    written?;
    line.write_all(b"\n").map_err(serde_json::Error::io)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Timestamp;

    fn line(payload: Payload<'_>, headers: Option<&str>) -> String {
        let mut line = Vec::new();
        let message = Message { id: "1", topic: "t", key: Some("k"), headers, payload, created_at: Timestamp(0) };
        write(&mut line, &message).unwrap();
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn each_kind_of_payload_has_its_own_field() {
        let start = r#"{"id":"1","topic":"t","key":"k","created_at":"1970-01-01T00:00:00.000000Z""#;
        assert_eq!(line(Payload::None, None), format!("{start}}}\n"));
        assert_eq!(line(Payload::Json("{\"a\": 1}"), None), format!("{start},\"json\":{{\"a\": 1}}}}\n"));
        assert_eq!(line(Payload::Bytes(b"a\n\0"), None), format!("{start},\"text\":\"a\\n\\u0000\"}}\n"));
        assert_eq!(line(Payload::Bytes(&[255, 0]), None), format!("{start},\"base64\":\"/wA=\"}}\n"));
    }

    #[test]
    fn json_over_several_lines_becomes_one() {
        let written = line(Payload::Json("{\r\n\"a\\n\":\n1}"), Some("{\n}"));
        assert_eq!(written.matches('\n').count(), 1);
        assert!(written.contains(r#""json":{  "a\n": 1}"#), "{written}");
    }

    #[test]
    fn json_of_any_depth_is_passed_on() {
        let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
        assert!(line(Payload::Json(&deep), None).contains(&deep));
    }
}
