//! What it costs the others that one message in a hundred is poison: the same backlog with and without those, in turn. To an endpoint,
//! which says of each message what becomes of it, and to an inbox, which takes a batch as a whole or not at all.

use std::time::Instant;

use super::Args;
use super::covered::Last;
use super::figures::{Figures, count, median, rate};
use super::site::{Site, end, poll};
use crate::Error;
use crate::endpoint::{Endpoint, Reply};
use crate::fixture::toml_text;

/// Each key has some of both.
const INSERT: &str = "
insert into pgbaton.outbox (topic, key, payload)
select case when n % 100 = 7 then 'poison' else 'orders' end, 'customer-' || (n::bigint * 7919 % 1000), convert_to(repeat('x', 200), 'utf8')
from generate_series(1, {waiting}) n;
vacuum (analyze) pgbaton.outbox;";

const REFUSED: &str = "alter table app.inbox add constraint good check (topic <> 'poison')";

pub(super) async fn run(args: &Args, figures: &mut Figures) -> Result<(), Error> {
    let site = Site::open(args).await?;
    let waiting = args.messages(100_000, 2_000);
    figures.doing(&format!(
        "poison: {waiting} messages, with one in a hundred that is rejected, and without those, in turn"
    ));
    for statement in INSERT.replace("{waiting}", &waiting.to_string()).split_terminator(';') {
        site.execute(statement).await?;
    }
    let last = Last::find(&site.admin).await?;
    let endpoint = Endpoint::forgetful(|received| {
        let is_poison = received.header("pgbaton-topic") == "poison";
        async move { Reply::Status(if is_poison { 422 } else { 204 }) }
    });
    let endpoint = endpoint.await?;
    site.fixture.inbox("app.inbox").await?;
    site.execute(REFUSED).await?;
    let url = toml_text(&endpoint.url("/"));
    let http = format!("{{ type = \"http\", url = {url}, allow_private = true, concurrency = 16 }}");
    for (name, sink) in [("http", http), ("inbox", site.fixture.inbox_sink("app.inbox"))] {
        let (mut none, mut some) = (Vec::new(), Vec::new());
        for round in 0..args.rounds(3) {
            let relay = |with: &str| format!("{name}-{with}-{round}");
            none.push(drain(&site, &relay("none"), &sink, "topics = [\"orders\"]", &last).await?);
            some.push(drain(&site, &relay("some"), &sink, "dead = \"skip\"", &last).await?);
        }
        let (none, some) = (median(&none), median(&some));
        figures.add(&format!("poison_{name}_none_per_second"), none, "messages/s, none is poison");
        figures.add(&format!("poison_{name}_per_second"), some, "of the others, messages/s, one in a hundred is");
        figures.add(&format!("poison_{name}_of_none"), some / none.max(1.0), "of that with none");
    }
    Ok(())
}

/// Messages a second that are not poison, until the relay has dealt with all.
async fn drain(site: &Site, relay: &str, sink: &str, more: &str, last: &Last) -> Result<f64, Error> {
    let began = Instant::now();
    let process = site.start(relay, relay, sink, more)?;
    poll(|| last.covered(&site.admin, relay)).await?;
    let took = began.elapsed();
    end(process).await?;
    let others: i64 = site.value("select count(*) from pgbaton.outbox where topic <> 'poison'").await?;
    Ok(rate(count(usize::try_from(others).unwrap_or_default()), took))
}
