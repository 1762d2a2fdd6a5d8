//! Webhooks: one POST for each message, at least once (T5). The receiver drops repeats by message id.
//!
//! Of each key one message is under way at a time, and of a lane at most `concurrency`. `request` makes requests, `link`
//! sends them, `answer` says which code an answer has, `turns` whose turn it is.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::header::{HeaderMap, HeaderName};
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use super::{Capabilities, OpenError, OpenLane, Opening, Part, ProbeError, Sink, Tier};
use crate::clock::Deadline;
use crate::faults;
use crate::lane::Grant;
use crate::message::Message;
use crate::outcome::{AppendError, Fault, Outcome, codes};
use crate::source::Opaque;
use crate::tls;

mod address;
mod answer;
mod link;
mod request;
mod sign;
mod turns;

use answer::{Answer, Undelivered, delivered};
use link::{Dialer, Exchange, Link, Until};
use request::{Target, Template, header_value, is_reserved};
use sign::Signer;
use turns::Turns;

/// Where to post, and how. Holds secrets: it cannot be printed.
pub struct Settings {
    /// `https://…` or `http://…`; `{topic}` in its path stands for the topic.
    pub url: String,
    /// Requests of one lane that are under way at once, at least 1.
    pub concurrency: usize,
    /// How long a connection may take to be made, and how long a request and its answer.
    pub timeout: Duration,
    /// Sent with each request, over the message's own.
    pub headers: Vec<(String, String)>,
    /// Whether addresses that are not of the public internet may be connected to.
    pub allow_private: bool,
    /// A PEM file with authorities that are trusted besides the system's.
    pub ca_file: Option<PathBuf>,
    /// Keys to sign with, as `whsec_` and base64; several with blanks between them.
    pub secret: Option<String>,
}

/// What is wrong with a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct BadSetting {
    /// Its name.
    pub key: &'static str,
    /// What is wrong with it. Does not quote it.
    pub problem: String,
}

/// The endpoint, shared by all lanes.
pub struct Webhooks(Arc<Endpoint>);

struct Endpoint {
    template: Template,
    dialer: Dialer,
    concurrency: usize,
    timeout: Duration,
}

impl Webhooks {
    /// Checks the settings, and reads the authorities if the URL asks for TLS. Connects to nothing.
    ///
    /// # Errors
    /// All that is wrong.
    pub fn new(settings: &Settings) -> Result<Self, Vec<BadSetting>> {
        let mut problems = Vec::new();
        let mut bad = |key, problem: String| problems.push(BadSetting { key, problem });
        let headers = operators(&settings.headers).map_err(|problem| bad("headers", problem)).ok();
        let signer = settings.secret.as_deref().map(|secret| {
            let problem = "is not `whsec_` and the base64 of 24 to 64 bytes; several have blanks between them";
            Signer::new(secret).ok_or_else(|| bad("secret", problem.to_owned())).ok()
        });
        let target = Target::parse(&settings.url).map_err(|problem| bad("url", problem.to_owned())).ok();
        let tls = target.as_ref().filter(|target| target.tls).and_then(|target| {
            let name = ServerName::try_from(target.host.clone());
            let name = name.map_err(|_| bad("url", "names no host that a certificate could be for".to_owned())).ok()?;
            let config = tls::roots(settings.ca_file.as_deref()).and_then(tls::client);
            let mut config = config.map_err(|error| bad("ca_file", error.to_string())).ok()?;
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            Some((TlsConnector::from(Arc::new(config)), name))
        });
        let (Some(target), Some(headers), true) = (target, headers, problems.is_empty()) else { return Err(problems) };
        let dialer = Dialer {
            host: target.host.clone(),
            port: target.port,
            tls,
            allow_private: settings.allow_private,
            timeout: settings.timeout,
        };
        let template = Template::new(target, headers, signer.flatten());
        let (concurrency, timeout) = (settings.concurrency.max(1), settings.timeout);
        Ok(Self(Arc::new(Endpoint { template, dialer, concurrency, timeout })))
    }

    /// The host, if messages go to it without TLS and it is not this machine, by its name.
    pub(crate) fn plain_host(&self) -> Option<&str> {
        let Dialer { host, tls, .. } = &self.0.dialer;
        let here = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        (tls.is_none() && !here).then_some(host)
    }

    /// Whether its requests are signed.
    pub(crate) fn signs(&self) -> bool {
        self.0.template.signs()
    }
}

/// The operator's headers. Values are secrets: a problem names the header only.
fn operators(headers: &[(String, String)]) -> Result<HeaderMap, String> {
    let mut all = HeaderMap::new();
    for (name, value) in headers {
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is no name of a header"))?;
        if is_reserved(&header) {
            return Err(format!("{name:?} is set by this sink or by the connection"));
        }
        let mut value = header_value(value).ok_or_else(|| format!("{name:?} has a value that is not ASCII text"))?;
        value.set_sensitive(true);
        all.insert(header, value);
    }
    Ok(all)
}

#[async_trait]
impl Sink for Webhooks {
    async fn probe(&self) -> Result<Capabilities, ProbeError> {
        let (_, address) = self.0.dialer.dial(&Until::default()).await.map_err(|fault| {
            let is_private = *fault.code() == codes::http::PRIVATE_ADDRESS;
            if is_private { ProbeError::Unusable(fault) } else { ProbeError::SinkDown(fault) }
        })?;
        if self.0.dialer.tls.is_none() && address::is_public(address.ip()) {
            tracing::warn!(
                endpoint = %self.0.dialer.host,
                "messages go over the public internet without TLS: use an https URL"
            );
        }
        Ok(Capabilities::plain(Tier::T5))
    }

    async fn open(&self, _grant: &Grant, _opening: Opening) -> Result<Box<dyn OpenLane>, OpenError> {
        let until = Until::default();
        let (link, _) = self.0.dialer.dial(&until).await.map_err(OpenError::SinkDown)?;
        Ok(Box::new(OpenWebhooks { endpoint: Arc::clone(&self.0), until, idle: vec![link] }))
    }
}

/// One lane's connections. They write only while its append is polled, and are closed with it.
struct OpenWebhooks {
    endpoint: Arc<Endpoint>,
    until: Until,
    /// At most as many as requests may be under way.
    idle: Vec<Link>,
}

#[async_trait]
impl OpenLane for OpenWebhooks {
    async fn position(&mut self) -> Result<Option<Opaque>, Fault> {
        Ok(None)
    }

    async fn append(&mut self, part: &Part<'_>, deadline: &Deadline) -> Result<Vec<Outcome>, AppendError> {
        deadline.check().map_err(|_| AppendError::LeaseOver)?;
        self.until.set(deadline);
        self.idle.retain_mut(Link::is_usable);
        let mut turns = Turns::new(part.messages());
        let mut outcomes: Vec<Option<Outcome>> = vec![None; part.len()];
        let mut stopped = None;
        let mut under_way = FuturesUnordered::new();
        loop {
            // What was found for one message holds for all that were not sent yet.
            while stopped.is_none() && under_way.len() < self.endpoint.concurrency {
                let Some((place, message)) = turns.next() else { break };
                if place > 0 {
                    faults::point("sink.mid_batch");
                }
                let (endpoint, until, link) = (&self.endpoint, &self.until, self.idle.pop());
                under_way.push(async move { (place, message, endpoint.deliver(&message, link, until).await) });
            }
            let Some((place, message, (answer, link))) = under_way.next().await else { break };
            self.idle.extend(link);
            let outcome = match answer {
                Ok(()) => {
                    turns.delivered(&message);
                    Some(Outcome::Delivered)
                }
                _ if deadline.left().is_err() => {
                    stopped = Some(AppendError::LeaseOver);
                    None
                }
                Err(Undelivered { fault, after }) => match Outcome::of(fault, after) {
                    Ok(outcome) => Some(outcome),
                    Err(error) => {
                        stopped.get_or_insert(error);
                        None
                    }
                },
            };
            if let Some(slot) = outcomes.get_mut(place) {
                *slot = outcome;
            }
        }
        settle(outcomes, stopped)
    }
}

/// The answer to the call; `stopped` is why the rest was not sent. What was delivered must not be sent again, so then no error
/// is the answer: the next call meets what ended this one. Without a delivered message an error stands for all of them: what timed out before may be there, and is
/// sent again either way.
fn settle(outcomes: Vec<Option<Outcome>>, stopped: Option<AppendError>) -> Result<Vec<Outcome>, AppendError> {
    let delivered = outcomes.contains(&Some(Outcome::Delivered));
    match stopped {
        Some(error) if !delivered => Err(error),
        // Without a reason to stop, what has no outcome waits behind an earlier message of its key.
        _ => Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or(Outcome::NotTried)).collect()),
    }
}

impl Endpoint {
    /// Sends one message, once. A connection that turns out to have been closed before is replaced.
    async fn deliver(
        &self,
        message: &Message<'_>,
        link: Option<Link>,
        until: &Until,
    ) -> (Result<(), Undelivered>, Option<Link>) {
        let (answer, link) = match self.template.request(message, SystemTime::now()) {
            Ok(request) => self.exchange(request, link, until).await,
            Err(fault) => (Answer::NotSent(fault), link),
        };
        (delivered(answer, self.template.target.by_topic()), link)
    }

    async fn exchange(&self, mut request: request::Post, link: Option<Link>, until: &Until) -> (Answer, Option<Link>) {
        if let Some(mut link) = link
            && link.is_usable()
        {
            match link.exchange(request, self.timeout).await {
                Exchange::Answered(answer, link) => return (answer, link),
                Exchange::NotSent(unsent) => request = unsent,
            }
        }
        let (link, _) = match self.dialer.dial(until).await {
            Ok(dialled) => dialled,
            Err(fault) => return (Answer::NotSent(fault), None),
        };
        match link.exchange(request, self.timeout).await {
            Exchange::Answered(answer, link) => (answer, link),
            Exchange::NotSent(_) => (Answer::Lost("closed at once".to_owned()), None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> Settings {
        Settings {
            url: url.to_owned(),
            concurrency: 4,
            timeout: Duration::from_secs(10),
            headers: Vec::new(),
            allow_private: false,
            ca_file: None,
            secret: None,
        }
    }

    #[test]
    fn all_problems_are_told_and_no_secret() {
        let bad = Settings {
            headers: vec![("host".to_owned(), "hunter2".to_owned())],
            secret: Some("hunter2".to_owned()),
            ..settings("https://u:hunter2@h/")
        };
        let problems = Webhooks::new(&bad).err().unwrap_or_default();
        assert_eq!(problems.iter().map(|problem| problem.key).collect::<Vec<_>>(), ["headers", "secret", "url"]);
        assert!(!problems.iter().any(|problem| problem.to_string().contains("hunter2")), "{problems:?}");
        let missing = Settings { ca_file: Some("missing.pem".into()), ..settings("https://h/") };
        assert!(Webhooks::new(&missing).is_err_and(|problems| problems[0].key == "ca_file"));
    }

    #[test]
    fn what_was_delivered_is_not_sent_again() {
        let down = || Some(AppendError::SinkDown(Fault::new(&codes::http::REFUSED, "")));
        assert!(matches!(settle(vec![None, None], down()), Err(AppendError::SinkDown(_))));
        let partly = Ok(vec![Outcome::NotTried, Outcome::Delivered]);
        assert_eq!(settle(vec![None, Some(Outcome::Delivered)], down()), partly);
        assert_eq!(settle(vec![None], Some(AppendError::LeaseOver)), Err(AppendError::LeaseOver));
        assert_eq!(settle(vec![None, Some(Outcome::Delivered)], None), partly);
    }
}
