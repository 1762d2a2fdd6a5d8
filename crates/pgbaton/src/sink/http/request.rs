//! The request of a message: its URL, its headers and its body. `docs/sinks.md` lists the headers.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Uri};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::value::RawValue;

use super::sign::Signer;
use crate::message::{Message, Payload};
use crate::outcome::Fault;
use crate::outcome::codes::http as codes;

/// A request with its whole body in memory.
pub(super) type Post = Request<Full<Bytes>>;

/// In a URL's path: all but what RFC 3986 leaves alone.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// In a header: a blank could be trimmed away, and `%` tells what was encoded. What is not ASCII always is.
const IN_HEADER: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// Names of headers that belong to the connection or to this sink.
const RESERVED: [&str; 11] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "idempotency-key",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];
const RESERVED_PREFIXES: [&str; 3] = ["pgbaton-", "proxy-", "webhook-"];
/// What pgbaton says of a message that is replayed, or copied because it is dead.
const OURS: [&str; 2] = ["pgbaton-replay", "pgbaton-dead-"];
/// What the operator may set and a message may not.
const OPERATORS: [&str; 3] = ["authorization", "cookie", "user-agent"];

/// What stands for the topic in the path of the URL.
const TOPIC: &str = "{topic}";

/// Where requests go.
pub(super) struct Target {
    /// Without the brackets of an IPv6 address.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: bool,
    /// As in the URL: the header `host`, and what logs call the endpoint. Path and query may hold a secret.
    pub(super) authority: HeaderValue,
    /// Path and query, cut where the topic goes.
    path: Vec<String>,
}

impl Target {
    /// Reads a URL.
    ///
    /// # Errors
    /// What is wrong with it, without quoting it.
    pub(super) fn parse(url: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = url.split_once("://").ok_or("is no URL such as \"https://example.org/hook\"")?;
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err("holds a user or a password: send them as `headers = { authorization = \"…\" }`");
        }
        if authority.contains(['{', '}']) || path.replace(TOPIC, "").contains(['{', '}']) {
            return Err("has a placeholder other than `{topic}`, or one before the path");
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let uri: Uri = format!("{scheme}://{authority}{}", path.replace(TOPIC, "topic"))
            .parse()
            .map_err(|_| "is no URL: characters that are not ASCII have to be encoded")?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err("begins neither with https:// nor with http://"),
        };
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        // The colons of an IPv6 address are within brackets.
        let port = authority.get(authority.rfind(']').unwrap_or_default()..).and_then(|rest| rest.split_once(':'));
        let port = match port {
            None => Some(if tls { 443 } else { 80 }),
            Some((_, port)) => port.parse().ok().filter(|port| *port > 0),
        };
        let port = port.ok_or("has no port from 1 to 65535 behind the colon")?;
        if host.is_empty() {
            return Err("names no host");
        }
        let authority = HeaderValue::from_str(authority).map_err(|_| "names no host")?;
        Ok(Self { host, port, tls, authority, path: path.split(TOPIC).map(str::to_owned).collect() })
    }

    /// Whether the URL depends on the topic.
    pub(super) fn by_topic(&self) -> bool {
        self.path.len() > 1
    }

    fn uri(&self, topic: &str) -> Result<Uri, Fault> {
        // Encoded or not, these two walk up the path.
        if self.by_topic() && matches!(topic, "." | "..") {
            return Err(Fault::new(&codes::TOPIC, "the topic would walk up the path of the URL"));
        }
        let topic = utf8_percent_encode(topic, IN_PATH).to_string();
        // hyper takes no more than 64 KiB.
        self.path.join(&topic).parse().map_err(|_| Fault::new(&codes::TOPIC, "the topic makes no URL"))
    }
}

/// How requests are made.
pub(super) struct Template {
    pub(super) target: Target,
    /// The operator's, over the message's own.
    headers: HeaderMap,
    signer: Option<Signer>,
}

impl Template {
    pub(super) fn new(target: Target, headers: HeaderMap, signer: Option<Signer>) -> Self {
        Self { target, headers, signer }
    }

    pub(super) fn signs(&self) -> bool {
        self.signer.is_some()
    }

    /// The request of one attempt.
    ///
    /// # Errors
    /// The message's fault.
    pub(super) fn request(&self, message: &Message<'_>, now: SystemTime) -> Result<Post, Fault> {
        let (body, kind) = match message.payload {
            Payload::None => (Bytes::new(), None),
            Payload::Bytes(bytes) => (Bytes::copy_from_slice(bytes), Some("application/octet-stream")),
            Payload::Json(json) => (Bytes::copy_from_slice(json.as_bytes()), Some("application/json")),
        };
        let mut headers = HeaderMap::new();
        headers.extend(kind.map(|kind| (CONTENT_TYPE, HeaderValue::from_static(kind))));
        passed_on(message.headers.unwrap_or_default(), &mut headers);
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("pgbaton/", env!("CARGO_PKG_VERSION"))));
        for (name, value) in &self.headers {
            headers.insert(name, value.clone());
        }
        self.ours(message, &body, now, &mut headers)?;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.target.uri(message.topic)?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    fn ours(&self, message: &Message<'_>, body: &[u8], now: SystemTime, to: &mut HeaderMap) -> Result<(), Fault> {
        let timestamp = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let id = encoded(message.id);
        let signature = self.signer.as_ref().map(|signer| signer.sign(&id, timestamp, body));
        let values = [
            ("idempotency-key", Some(id.clone())),
            ("webhook-id", Some(id)),
            ("webhook-timestamp", Some(timestamp.to_string())),
            ("webhook-signature", signature),
            ("pgbaton-topic", Some(encoded(message.topic))),
            ("pgbaton-key", message.key.map(encoded)),
            ("pgbaton-headers", message.headers.map(encoded)),
            ("pgbaton-created-at", Some(message.created_at.to_string())),
            (CONTENT_LENGTH.as_str(), Some(body.len().to_string())),
        ];
        for (name, value) in values.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            // What is encoded is visible ASCII, so this does not happen.
            let value =
                HeaderValue::try_from(value).map_err(|_| Fault::new(&codes::HEADER, "a header takes no value"))?;
            to.insert(HeaderName::from_static(name), value);
        }
        to.insert(HOST, self.target.authority.clone());
        Ok(())
    }
}

/// Of a message's headers so many become headers of the request: endpoints refuse more, and the map panics at thousands.
const MOST_HEADERS: usize = 100;

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, IN_HEADER).to_string()
}

/// Adds those of a message's headers that are texts and can be headers of a request; all of them are in `pgbaton-headers`.
fn passed_on(headers: &str, to: &mut HeaderMap) {
    // Values of any depth: they are only looked at if they are texts.
    let Ok(headers) = serde_json::from_str::<BTreeMap<String, &RawValue>>(headers) else { return };
    for (name, value) in headers.into_iter().take(MOST_HEADERS) {
        let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else { continue };
        let Ok(value) = serde_json::from_str::<String>(value.get()) else { continue };
        if let Some(value) = header_value(&value)
            && (!is_reserved(&name) || OURS.iter().any(|ours| name.as_str().starts_with(ours)))
            && !OPERATORS.contains(&name.as_str())
        {
            to.insert(name, value);
        }
    }
}

/// A text as the value of a header: only ASCII is read by everybody as it was written.
pub(super) fn header_value(text: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(text).ok().filter(|_| text.is_ascii())
}

/// Whether only this sink, or the connection, may set this header.
pub(super) fn is_reserved(name: &HeaderName) -> bool {
    let name = name.as_str();
    RESERVED.contains(&name) || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Timestamp;

    fn target(url: &str) -> Target {
        Target::parse(url).unwrap_or_else(|problem| panic!("{url} {problem}"))
    }

    fn request(url: &str, headers: &[(&'static str, &'static str)], message: &Message<'_>) -> Post {
        let headers =
            headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let template = Template::new(target(url), headers.collect(), None);
        template.request(message, UNIX_EPOCH + std::time::Duration::from_millis(5_900)).unwrap()
    }

    fn message<'a>(topic: &'a str, key: Option<&'a str>, headers: Option<&'a str>) -> Message<'a> {
        Message { id: "id ü", topic, key, headers, payload: Payload::Json("{}"), created_at: Timestamp(0) }
    }

    #[test]
    fn urls_are_read() {
        for (url, host, port, tls, authority, path) in [
            ("https://example.org", "example.org", 443, true, "example.org", "/"),
            ("http://example.org:8080/a?b=c#d", "example.org", 8080, false, "example.org:8080", "/a?b=c"),
            ("HTTPS://[::1]:1/x", "::1", 1, true, "[::1]:1", "/x"),
            ("https://h?q={topic}", "h", 443, true, "h", "/?q=t%2F"),
            ("https://h/{topic}/x", "h", 443, true, "h", "/t%2F/x"),
        ] {
            let read = target(url);
            let shown = read.authority.to_str().unwrap();
            assert_eq!((read.host.as_str(), read.port, read.tls, shown), (host, port, tls, authority), "{url}");
            assert_eq!(read.uri("t/").unwrap(), *path, "{url}");
        }
        for bad in [
            "",
            "example.org/x",
            "ftp://example.org",
            "https://",
            "https:///x",
            "https://u:p@example.org",
            "https://h/{key}",
            "https://{topic}.example.org/",
            "https://h/{",
            "https://h:0/",
            "https://h:99999/",
            "https://h:/",
            "https://h/ x",
        ] {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_topic_stays_in_its_place() {
        let target = target("https://h/in/{topic}");
        assert_eq!(target.uri("a/../b?c#d e").unwrap(), "/in/a%2F..%2Fb%3Fc%23d%20e");
        assert!(target.uri("..").is_err() && target.uri(".").is_err());
        assert!(target.uri("...").is_ok());
        assert!(target.uri(&"x".repeat(100_000)).is_err());
    }

    #[test]
    fn headers_say_what_the_message_is() {
        let request = request("https://h/x", &[], &message("a topic", Some(" 50% ß"), None));
        let header = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap());
        for (name, value) in [
            ("webhook-id", "id%20%C3%BC"),
            ("idempotency-key", "id%20%C3%BC"),
            ("webhook-timestamp", "5"),
            ("content-type", "application/json"),
            ("content-length", "2"),
            ("host", "h"),
            ("pgbaton-topic", "a%20topic"),
            ("pgbaton-key", "%2050%25%20%C3%9F"),
            ("pgbaton-created-at", "1970-01-01T00:00:00.000000Z"),
        ] {
            assert_eq!(header(name), Some(value), "{name}");
        }
        assert!(header("user-agent").unwrap().starts_with("pgbaton/"));
        assert_eq!((header("pgbaton-headers"), header("webhook-signature")), (None, None));
        assert_eq!(request.method(), Method::POST);
    }

    #[test]
    fn a_messages_headers_pass_unless_they_are_not_its_to_set() {
        let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        let own = format!(
            r#"{{"traceparent": "00-1-2-03", "X-Both": "message", "content-type": "text/csv", "Host": "evil",
                "authorization": "x", "Webhook-Id": "x", "proxy-x": "x", "pgbaton-topic": "x", "user-agent": "x",
                "number": 1, "line": "a\r\nb: c", "no name": "x", "umlaut": "ü", "deep": {deep}}}"#
        );
        let request = request("https://h/x", &[("x-both", "operator")], &message("t", None, Some(&own)));
        let header = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap());
        assert_eq!(header("traceparent"), Some("00-1-2-03"));
        assert_eq!(header("content-type"), Some("text/csv"));
        assert_eq!(header("x-both"), Some("operator"));
        assert_eq!((header("host"), header("webhook-id")), (Some("h"), Some("id%20%C3%BC")));
        assert!(header("user-agent").unwrap().starts_with("pgbaton/"));
        for absent in ["authorization", "proxy-x", "number", "line", "umlaut", "deep"] {
            assert_eq!(header(absent), None, "{absent}");
        }
        let whole = percent_encoding::percent_decode_str(header("pgbaton-headers").unwrap()).decode_utf8().unwrap();
        assert_eq!(whole, own);
    }

    #[test]
    fn a_payload_decides_the_type() {
        let with = |payload| {
            let request = request("https://h/x", &[], &Message { payload, ..message("t", None, None) });
            request.headers().get("content-type").map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(with(Payload::None), None);
        assert_eq!(with(Payload::Bytes(b"")).as_deref(), Some("application/octet-stream"));
    }
}
