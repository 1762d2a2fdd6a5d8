//! What it costs others that messages are set aside: the same backlog drained with none and with 100,000 of them, whose keys get no
//! new messages, in turn. Of the outbox, and of a table, where they lie in front of all others.

use super::adopted::{drain_table, fill};
use super::covered::Last;
use super::drain::drain;
use super::figures::{Figures, Goal, median};
use super::site::Site;
use super::{Args, messages};
use crate::Error;

/// Tried once, and not due before tomorrow. A relay of the bench's own keeps them, so that nothing else sees them.
const ASIDE: &str = "
insert into pgbaton.parked (relay, id, hash, xid, log_id, row_id, topic, key, payload, size, created_at,
                            attempts, next_at, first_at, last_at, code)
select '{relay}', '{relay}:' || {id}, hashtextextended(({key}) collate \"C\", 0),
       {xid}, {log_id}, {row_id}, 't', {key}, {payload}, 100, now(), 1, now() + interval '1 day', now(), now(), 'http.failed'
from {rows};
analyze pgbaton.parked";

const TABLES_OWN: &str = "
insert into app.outbox (id, site_id, topic, payload, created_at)
select gen_random_uuid(), 'aside ' || n, 't', '{}', 'epoch'::timestamptz + n * interval '1 us' from generate_series(1, {many}) n";

pub(super) async fn run(args: &Args, figures: &mut Figures) -> Result<(), Error> {
    let site = Site::open(args).await?;
    let (waiting, many) = (args.messages(1_000_000, 5_000), if args.quick { 1_000 } else { 100_000 });
    figures.doing(&format!("parked: {waiting} messages, with none and with {many} set aside, in turn"));
    messages::write(&site, waiting).await?;
    let last = Last::find(&site.admin).await?;
    let (mut log, mut table): ([Vec<f64>; 2], [Vec<f64>; 2]) = Default::default();
    for round in 0..args.rounds(3) {
        for (with, (log, table)) in log.iter_mut().zip(&mut table).enumerate() {
            let relay = format!("log{with}r{round}");
            if with == 1 {
                aside(&site, &relay, many).await?;
            }
            log.push(drain(&site, &relay, &last, 1).await?.rate());
            let relay = format!("table{with}r{round}");
            let rows = fill(&site).await?;
            if with == 1 {
                rows_aside(&site, &relay, many).await?;
            }
            table.push(drain_table(&site, &relay, "{ published_at = \"now()\" }", rows).await?.rate());
        }
    }
    for (name, [none, some]) in [("log", log), ("table", table)] {
        let (none, some) = (median(&none), median(&some));
        figures.add(&format!("parked_{name}_none_per_second"), none, "messages/s, none set aside");
        figures.add(&format!("parked_{name}_per_second"), some, &format!("messages/s, {many} set aside"));
        figures.judge(
            &format!("parked_{name}_of_none"),
            some / none.max(1.0),
            "of that with none",
            Goal::AtLeast(0.95),
        );
    }
    Ok(())
}

async fn aside(site: &Site, relay: &str, many: u32) -> Result<(), Error> {
    let sql = ASIDE
        .replace("{id}", "n")
        .replace("{key}", "'aside ' || n")
        .replace("{xid}", "'3'")
        .replace("{log_id}", "n")
        .replace("{row_id}", "null")
        .replace("{payload}", "convert_to(repeat('x', 100), 'utf8')")
        .replace("{rows}", &format!("generate_series(1, {many}) n"));
    site.execute(&sql.replace("{relay}", relay)).await
}

async fn rows_aside(site: &Site, relay: &str, many: u32) -> Result<(), Error> {
    site.execute(&TABLES_OWN.replace("{many}", &many.to_string())).await?;
    let sql = ASIDE
        .replace("{id}", "o.id")
        .replace("{key}", "o.site_id")
        .replace("{xid}", "null::xid8")
        .replace("{log_id}", "null::bigint")
        .replace("{row_id}", "array[o.id::text]")
        .replace("{payload}", "null::bytea")
        .replace("{rows}", "app.outbox o where o.site_id like 'aside %'");
    site.execute(&sql.replace("{relay}", relay)).await?;
    site.execute("vacuum (analyze) app.outbox").await
}
