//! What an answer means for its message. The one table is [`verdict`]; `docs/sinks.md` shows it to users.

use std::time::{Duration, SystemTime};

use hyper::StatusCode;

use crate::outcome::Fault;

/// Nobody is waited for longer than this because he asked for it.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(3_600);

/// What became of one request.
pub(super) enum Answer {
    /// A status, and how long the endpoint wants to be left alone.
    Status(StatusCode, Option<Duration>),
    /// Sent, and no status within this time.
    TimedOut(Duration),
    /// The connection ended before a status came.
    Lost(String),
    /// No connection: nothing was sent.
    Unreachable(Fault),
    /// No request can be made of the message: nothing was sent.
    Unfit(Fault),
}

/// What an answer means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The endpoint has it.
    Delivered,
    /// It has not, or this is not known; the same message may be taken later.
    Retry { after: Option<Duration>, fault: Fault },
    /// It will never take this message.
    Rejected(Fault),
    /// It takes none.
    Down(Fault),
}

/// The table. `by_topic`: the URL depends on the topic, so that one which is not there says nothing of the others.
///
/// The texts hold no word of the endpoint's: it may quote what it was sent.
pub(super) fn verdict(answer: Answer, by_topic: bool) -> Verdict {
    let (status, after) = match answer {
        Answer::Status(status, after) => (status, after),
        Answer::TimedOut(timeout) => {
            let text = format!("no answer within {timeout:?}; the endpoint may have taken it");
            return Verdict::Retry { after: None, fault: Fault::new("http.timeout", &text) };
        }
        Answer::Lost(why) => {
            let text = format!("the connection ended before an answer ({why}); the endpoint may have taken it");
            return Verdict::Retry { after: None, fault: Fault::new("http.connection_lost", &text) };
        }
        Answer::Unreachable(fault) => return Verdict::Down(fault),
        Answer::Unfit(fault) => return Verdict::Rejected(fault),
    };
    let fault = |code, what: &str| Fault::new(code, &format!("the endpoint answered {status}{what}"));
    let retry = |code, what| Verdict::Retry { after, fault: fault(code, what) };
    match status.as_u16() {
        200..=299 => Verdict::Delivered,
        408 | 425 | 429 | 500..=599 => retry("http.try_later", ""),
        409 => retry("http.in_progress", ": it is dealing with an earlier attempt"),
        404 | 405 | 410 if by_topic => Verdict::Rejected(fault("http.rejected", " to the URL of this topic")),
        // Whatever is sent: credentials, rights, the URL, the method, a proxy, another server, another protocol.
        401..=405 | 407 | 410 | 421 | 426 => Verdict::Down(fault("http.refused", "; check `url` and `headers`")),
        300..=399 => Verdict::Down(fault("http.redirected", "; redirects are not followed: correct `url`")),
        400..=499 => Verdict::Rejected(fault("http.rejected", "")),
        _ => Verdict::Down(fault("http.no_answer", ", which is no answer to a POST")),
    }
}

/// Reads `Retry-After`: seconds, or a date.
pub(super) fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let after = if digits {
        // More than fits is more than is waited for.
        value.parse().map_or(LONGEST_RETRY_AFTER, Duration::from_secs)
    } else {
        httpdate::parse_http_date(value).ok()?.duration_since(now).unwrap_or_default()
    };
    Some(after.min(LONGEST_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(status: u16, by_topic: bool) -> &'static str {
        match verdict(Answer::Status(StatusCode::from_u16(status).unwrap(), None), by_topic) {
            Verdict::Delivered => "delivered",
            Verdict::Retry { .. } => "retry",
            Verdict::Rejected(_) => "rejected",
            Verdict::Down(_) => "down",
        }
    }

    #[test]
    fn every_status_has_its_verdict() {
        for (statuses, wanted) in [
            (&[200, 201, 202, 204, 299][..], "delivered"),
            (&[408, 409, 425, 429, 500, 502, 503, 504, 599], "retry"),
            (&[400, 406, 411, 413, 414, 415, 418, 422, 431, 499], "rejected"),
            (&[401, 402, 403, 404, 405, 407, 410, 421, 426], "down"),
            (&[300, 301, 302, 303, 304, 307, 308], "down"),
            (&[101, 600, 999], "down"),
        ] {
            for status in statuses {
                assert_eq!(word(*status, false), wanted, "{status}");
            }
        }
        assert_eq!([404, 405, 410, 401].map(|status| word(status, true)), ["rejected", "rejected", "rejected", "down"]);
    }

    #[test]
    fn retry_after_is_read_in_both_forms_and_capped() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (value, seconds) in [
            ("0", Some(0)),
            (" 7 ", Some(7)),
            ("86400", Some(3_600)),
            ("99999999999999999999999", Some(3_600)),
            ("Sun, 06 Nov 1994 08:49:47 GMT", Some(10)),
            ("Sun, 06 Nov 1994 08:49:30 GMT", Some(0)),
            ("Sat, 06 Nov 2094 08:49:30 GMT", Some(3_600)),
            ("soon", None),
            ("-1", None),
            ("", None),
        ] {
            assert_eq!(retry_after(value, now), seconds.map(Duration::from_secs), "{value}");
        }
    }

    #[test]
    fn a_retry_carries_what_the_endpoint_asked_for() {
        let after = Some(Duration::from_secs(5));
        let verdict = verdict(Answer::Status(StatusCode::TOO_MANY_REQUESTS, after), false);
        assert!(matches!(verdict, Verdict::Retry { after: asked, .. } if asked == after), "{verdict:?}");
    }
}
