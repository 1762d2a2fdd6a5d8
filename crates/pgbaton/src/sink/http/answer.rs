//! What an answer means for its message: which code it has. The one table is [`delivered`]; what each code means is in
//! [`codes`], and `docs/errors.md` shows both to users.

use std::time::{Duration, SystemTime};

use hyper::StatusCode;

use crate::outcome::Fault;
use crate::outcome::codes::http as codes;

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
    /// Nothing was sent: no connection, or no request can be made of the message.
    NotSent(Fault),
}

/// Why a message does not count as delivered.
#[derive(Debug)]
pub(super) struct Undelivered {
    pub(super) fault: Fault,
    /// The endpoint asked to be left alone for so long.
    pub(super) after: Option<Duration>,
}

/// The table. `by_topic`: the URL depends on the topic, so that one which is not there says nothing of the others.
///
/// The texts hold no word of the endpoint's: it may quote what it was sent.
///
/// # Errors
/// The endpoint has not taken the message, or this is not known.
pub(super) fn delivered(answer: Answer, by_topic: bool) -> Result<(), Undelivered> {
    let because = |fault| Err(Undelivered { fault, after: None });
    let (status, after) = match answer {
        Answer::Status(status, after) => (status, after),
        Answer::TimedOut(timeout) => {
            let text = format!("no answer within {timeout:?}; the endpoint may have taken it");
            return because(Fault::new(&codes::TIMEOUT, &text));
        }
        Answer::Lost(why) => {
            let text = format!("the connection ended before an answer ({why}); the endpoint may have taken it");
            return because(Fault::new(&codes::CONNECTION_LOST, &text));
        }
        Answer::NotSent(fault) => return because(fault),
    };
    let (code, more) = match status.as_u16() {
        200..=299 => return Ok(()),
        300..=399 => (&codes::REDIRECTED, "; redirects are not followed: correct `url`"),
        404 | 405 | 410 if by_topic => (&codes::REJECTED, " to the URL of this topic"),
        // Whatever is sent: credentials, rights, the URL, the method, a proxy, another server, another protocol.
        401..=405 | 407 | 410 | 421 | 426 => (&codes::REFUSED, "; check `url` and `headers`"),
        408 | 425 => (&codes::TRY_LATER, ""),
        409 => (&codes::IN_PROGRESS, ": it is dealing with an earlier attempt"),
        429 => (&codes::TOO_MANY, ""),
        400..=499 => (&codes::REJECTED, ""),
        502..=504 => (&codes::UNAVAILABLE, ""),
        500..=599 => (&codes::FAILED, ""),
        _ => (&codes::NO_ANSWER, ", which is no answer to a POST"),
    };
    Err(Undelivered { fault: Fault::new(code, &format!("the endpoint answered {status}{more}")), after })
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
    use crate::outcome::{Code, Meaning};

    fn code(status: u16, by_topic: bool) -> Option<&'static Code> {
        let answer = Answer::Status(StatusCode::from_u16(status).unwrap(), None);
        delivered(answer, by_topic).err().map(|undelivered| undelivered.fault.code())
    }

    #[test]
    fn every_status_has_its_code() {
        for (statuses, wanted) in [
            (&[200, 201, 202, 204, 299][..], None),
            (&[408, 425], Some((&codes::TRY_LATER, Meaning::Silent))),
            (&[409], Some((&codes::IN_PROGRESS, Meaning::Retry))),
            (&[429], Some((&codes::TOO_MANY, Meaning::Busy))),
            (&[500, 501, 505, 507, 599], Some((&codes::FAILED, Meaning::Retry))),
            (&[502, 503, 504], Some((&codes::UNAVAILABLE, Meaning::Silent))),
            (&[400, 406, 411, 413, 414, 415, 418, 422, 431, 499], Some((&codes::REJECTED, Meaning::Reject))),
            (&[401, 402, 403, 404, 405, 407, 410, 421, 426], Some((&codes::REFUSED, Meaning::Down))),
            (&[300, 301, 302, 303, 304, 307, 308], Some((&codes::REDIRECTED, Meaning::Down))),
            (&[101, 600, 999], Some((&codes::NO_ANSWER, Meaning::Down))),
        ] {
            for status in statuses {
                assert_eq!(code(*status, false).map(|code| (code, code.meaning)), wanted, "{status}");
            }
        }
        for status in [404, 405, 410] {
            assert_eq!(code(status, true), Some(&codes::REJECTED), "{status}");
        }
        assert_eq!(code(401, true), Some(&codes::REFUSED));
    }

    /// The endpoint may have taken the message.
    #[test]
    fn no_status_says_nothing_of_the_message() {
        for (answer, wanted) in [
            (Answer::TimedOut(Duration::from_secs(1)), &codes::TIMEOUT),
            (Answer::Lost("reset".to_owned()), &codes::CONNECTION_LOST),
        ] {
            let code = delivered(answer, false).err().map(|undelivered| undelivered.fault.code());
            assert_eq!(code.map(|code| (code, code.meaning)), Some((wanted, Meaning::Silent)));
        }
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
        let answered = delivered(Answer::Status(StatusCode::TOO_MANY_REQUESTS, after), false);
        assert!(answered.is_err_and(|undelivered| undelivered.after == after));
    }
}
