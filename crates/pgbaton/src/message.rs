//! A message as a sink sees it, and the buffer that holds the messages of one batch.
//!
//! A batch may hold thousands of messages and exists for milliseconds, so its messages share two buffers and are lent
//! out as views. A sink that needs one for longer copies it.

use std::fmt;

/// One row of the outbox, lent out for as long as its batch lives.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// Stable across retries and replicas, at most 200 bytes: what a receiver drops repeats by.
    pub id: &'a str,
    /// Where it goes.
    pub topic: &'a str,
    /// What it is ordered by; `None` means that no order is asked for. An empty key is a key.
    pub key: Option<&'a str>,
    /// The text of one JSON object, as the producer wrote it.
    pub headers: Option<&'a str>,
    /// What it says.
    pub payload: Payload<'a>,
    /// When the producer's statement inserted it, by the database server's clock.
    pub created_at: Timestamp,
}

impl Message<'_> {
    /// Bytes of what is in it, its id left out.
    pub(crate) fn bytes(&self) -> usize {
        let texts = [self.key, self.headers].into_iter().flatten().map(str::len).sum::<usize>();
        self.topic.len() + texts + self.payload.len()
    }
}

/// The payload exactly as it was inserted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Payload<'a> {
    /// Both columns were null.
    None,
    /// `payload bytea`.
    Bytes(&'a [u8]),
    /// `payload_json json`, kept byte for byte.
    Json(&'a str),
}

impl Payload<'_> {
    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Bytes(bytes) => bytes.len(),
            Self::Json(text) => text.len(),
        }
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Payloads never reach logs: only the kind and the size are shown.
impl fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
            Self::Json(text) => write!(f, "Json({} bytes)", text.len()),
        }
    }
}

/// Microseconds since 1970-01-01 UTC, as PostgreSQL keeps them. Shown as RFC 3339.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub i64);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(timestamp) => write!(f, "{timestamp:.6}"),
            // PostgreSQL knows years up to 294276 and infinity; nothing else here can write those down.
            Err(_) if self.0 > 0 => f.write_str("infinity"),
            Err(_) => f.write_str("-infinity"),
        }
    }
}

/// The messages of one batch: text in one buffer, binary payloads in another.
#[derive(Default)]
pub struct Messages {
    text: String,
    binary: Vec<u8>,
    entries: Vec<Entry>,
}

/// Where one message lies. The parts follow each other in `text`: id, topic, key, headers, JSON payload.
struct Entry {
    text_start: usize,
    id: usize,
    topic: usize,
    key: Option<usize>,
    headers: Option<usize>,
    payload: PayloadEntry,
    created_at: Timestamp,
}

#[derive(Clone, Copy)]
enum PayloadEntry {
    None,
    Json(usize),
    Binary { start: usize, len: usize },
}

impl Messages {
    /// Copies one message in at the end.
    pub fn push(&mut self, message: Message<'_>) {
        let text_start = self.text.len();
        self.text.push_str(message.id);
        self.text.push_str(message.topic);
        self.text.push_str(message.key.unwrap_or_default());
        self.text.push_str(message.headers.unwrap_or_default());
        let payload = match message.payload {
            Payload::None => PayloadEntry::None,
            Payload::Json(json) => {
                self.text.push_str(json);
                PayloadEntry::Json(json.len())
            }
            Payload::Bytes(bytes) => {
                let start = self.binary.len();
                self.binary.extend_from_slice(bytes);
                PayloadEntry::Binary { start, len: bytes.len() }
            }
        };
        self.entries.push(Entry {
            text_start,
            id: message.id.len(),
            topic: message.topic.len(),
            key: message.key.map(str::len),
            headers: message.headers.map(str::len),
            payload,
            created_at: message.created_at,
        });
    }

    /// Keeps the first so many, and gives the others.
    pub(crate) fn split_off(&mut self, at: usize) -> Self {
        let mut rest = Self::default();
        self.iter().skip(at).for_each(|message| rest.push(message));
        let left_out = self.entries.get(at..).unwrap_or_default();
        let text = left_out.first().map_or(self.text.len(), |entry| entry.text_start);
        let binary = left_out.iter().find_map(|entry| match entry.payload {
            PayloadEntry::Binary { start, .. } => Some(start),
            PayloadEntry::None | PayloadEntry::Json(_) => None,
        });
        self.text.truncate(text);
        self.binary.truncate(binary.unwrap_or(self.binary.len()));
        self.entries.truncate(at);
        rest
    }

    /// Leaves out those at these places, which ascend.
    pub(crate) fn leave_out(&mut self, places: &[usize]) {
        let mut kept = Self::default();
        let stays = |(place, _): &(usize, Message<'_>)| places.binary_search(place).is_err();
        self.iter().enumerate().filter(stays).for_each(|(_, message)| kept.push(message));
        *self = kept;
    }

    /// Takes all messages out and keeps the space they had.
    pub(crate) fn clear(&mut self) {
        self.text.clear();
        self.binary.clear();
        self.entries.clear();
    }

    /// Bytes this occupies, whether filled or not.
    pub(crate) fn capacity(&self) -> usize {
        self.text.capacity() + self.binary.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    /// Number of messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes held, without the bookkeeping.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.text.len() + self.binary.len()
    }

    /// When the message at this place was inserted.
    pub(crate) fn created_at(&self, index: usize) -> Option<Timestamp> {
        self.entries.get(index).map(|entry| entry.created_at)
    }

    /// The message at this place.
    pub(crate) fn get(&self, index: usize) -> Option<Message<'_>> {
        self.entries.get(index).map(|entry| self.view(entry))
    }

    /// The messages in the order in which they must reach the sink.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Message<'_>> {
        self.entries.iter().map(|entry| self.view(entry))
    }

    fn view(&self, entry: &Entry) -> Message<'_> {
        let mut at = entry.text_start;
        let mut next = |len: usize| {
            let part = self.text.get(at..at + len).unwrap_or_default();
            at += len;
            part
        };
        Message {
            id: next(entry.id),
            topic: next(entry.topic),
            key: entry.key.map(&mut next),
            headers: entry.headers.map(&mut next),
            payload: match entry.payload {
                PayloadEntry::None => Payload::None,
                PayloadEntry::Json(len) => Payload::Json(next(len)),
                PayloadEntry::Binary { start, len } => {
                    Payload::Bytes(self.binary.get(start..start + len).unwrap_or_default())
                }
            },
            created_at: entry.created_at,
        }
    }
}

/// Only counts: payloads never reach logs.
impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} messages, {} bytes", self.len(), self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_as_they_went_in() {
        let written = [
            Message { id: "1", topic: "a", key: None, headers: None, payload: Payload::None, created_at: Timestamp(0) },
            Message {
                id: "22",
                topic: "bb",
                key: Some(""),
                headers: Some("{}"),
                payload: Payload::Bytes(&[0, 255, 10]),
                created_at: Timestamp(1),
            },
            Message {
                id: "ü",
                topic: "ß",
                key: Some("k"),
                headers: Some("{\"a\":1}"),
                payload: Payload::Json("[1, 2]"),
                created_at: Timestamp(2),
            },
            Message {
                id: "4",
                topic: "c",
                key: Some("k"),
                headers: None,
                payload: Payload::Bytes(&[]),
                created_at: Timestamp(3),
            },
        ];
        let mut messages = Messages::default();
        for message in written {
            messages.push(message);
        }
        assert_eq!(messages.len(), written.len());
        for (read, written) in messages.iter().zip(written) {
            assert_eq!(
                (read.id, read.topic, read.key, read.headers),
                (written.id, written.topic, written.key, written.headers)
            );
            assert_eq!((read.payload, read.created_at), (written.payload, written.created_at));
        }
    }

    #[test]
    fn messages_are_divided_and_left_out() {
        let payloads =
            [Payload::Json("{}"), Payload::Bytes(&[1, 2]), Payload::None, Payload::Bytes(&[3]), Payload::None];
        let ids = ["a", "bb", "c", "d", "e"];
        let all = || {
            let mut messages = Messages::default();
            for (id, payload) in ids.into_iter().zip(payloads) {
                messages.push(Message { id, topic: "t", key: None, headers: None, payload, created_at: Timestamp(0) });
            }
            messages
        };
        let read = |messages: &Messages| {
            messages.iter().map(|message| (message.id.to_owned(), format!("{:?}", message.payload))).collect::<Vec<_>>()
        };
        let whole = read(&all());
        for at in 0..=ids.len() {
            let mut messages = all();
            let rest = messages.split_off(at);
            assert_eq!(messages.bytes() + rest.bytes(), all().bytes());
            assert_eq!([read(&messages), read(&rest)].concat(), whole);
        }
        let mut messages = all();
        messages.leave_out(&[0, 3]);
        assert_eq!(read(&messages), [&whole[1..3], &whole[4..]].concat());
    }

    #[test]
    fn payloads_do_not_show() {
        let mut messages = Messages::default();
        messages.push(Message {
            id: "1",
            topic: "t",
            key: None,
            headers: None,
            payload: Payload::Json("\"secret\""),
            created_at: Timestamp(0),
        });
        let shown = format!("{:?} {:?}", messages, messages.iter().next());
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn timestamps_beyond_the_calendar_are_shown() {
        assert_eq!(Timestamp(0).to_string(), "1970-01-01T00:00:00.000000Z");
        assert_eq!(Timestamp(i64::MAX).to_string(), "infinity");
        assert_eq!(Timestamp(i64::MIN).to_string(), "-infinity");
    }
}
