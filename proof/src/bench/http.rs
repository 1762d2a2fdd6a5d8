//! Requests a second of the `http` sink at an endpoint that answers after 20 ms, beside what so many at once could do
//! at most. Messages have no key, so that only lanes and `concurrency` limit them.

use std::time::{Duration, Instant};

use super::Args;
use super::figures::{Figures, count, rate};
use super::site::{Site, poll};
use crate::Error;
use crate::endpoint::Endpoint;
use crate::fixture::toml_text;

const ANSWER: Duration = Duration::from_millis(20);
/// Until connections are made and batches flow.
const WARM_UP: Duration = Duration::from_secs(1);

const INSERT: &str = "insert into pgbaton.outbox (topic, payload_json)
select 'orders', ('{\"order\": ' || n || ', \"note\": \"' || rpad('', 160, 'lorem ipsum dolor ') || '\"}')::json
from generate_series(1, $1::integer) n";

pub(super) async fn run(args: &Args, figures: &mut Figures) -> Result<(), Error> {
    let site = Site::open(args).await?;
    let waiting = args.messages(200_000, 20_000);
    let producer = site.fixture.producer().await?;
    let all = i32::try_from(waiting).unwrap_or(i32::MAX);
    producer.execute(INSERT, &[&all]).await.map_err(|cause| Error::because("writing messages", &cause))?;
    site.execute("vacuum (analyze) pgbaton.outbox").await?;
    for lanes in [1_u32, 16] {
        for concurrency in [1_u32, 4, 16, 64] {
            figures.doing(&format!("http: {lanes} lane(s), concurrency {concurrency}"));
            let measured = measure(&site, lanes, concurrency, args.seconds(5)).await?;
            let limit = rate(f64::from(lanes * concurrency), ANSWER);
            let name = format!("http_lanes_{lanes}_concurrency_{concurrency}");
            figures.add(&format!("{name}_per_second"), measured, &format!("requests/s, at most {limit}"));
            figures.add(&format!("{name}_of_limit"), measured / limit, "of the limit");
        }
    }
    Ok(())
}

/// A relay of its own, which begins with the oldest message.
async fn measure(site: &Site, lanes: u32, concurrency: u32, seconds: Duration) -> Result<f64, Error> {
    let endpoint = Endpoint::counting(ANSWER).await?;
    let relay = format!("http-{lanes}-{concurrency}");
    let url = toml_text(&endpoint.url("/"));
    let sink = format!("{{ type = \"http\", url = {url}, allow_private = true, concurrency = {concurrency} }}");
    let mut process = site.start(&relay, &relay, &sink, &format!("lanes = {lanes}"))?;
    poll(|| async { Ok(endpoint.count() > 0) }).await?;
    tokio::time::sleep(WARM_UP).await;
    let (began, before) = (Instant::now(), endpoint.count());
    tokio::time::sleep(seconds).await;
    let (took, after) = (began.elapsed(), endpoint.count());
    // What it still had in its hands matters to nobody.
    process.kill()?;
    let all: i64 = site.value("select count(*) from pgbaton.outbox").await?;
    if usize::try_from(all).is_ok_and(|all| after >= all) {
        return Err(Error::new(format!("{all} messages are too few for {seconds:?}: give --messages or --seconds")));
    }
    Ok(rate(count(after - before), took))
}
