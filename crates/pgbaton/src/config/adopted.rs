//! What a configuration's relays read: for `pgbaton adopt`, which looks at both ends of one that adopts a table, and for `pgbaton trace`.

use crate::adopt::Configured;
use crate::config::Config;
use crate::connection::Database;
use crate::control::trace::{Read, Reads};
use crate::error::{Error, Kind};
use crate::source::SourceSpec;
use crate::source::table::TableName;

impl Config {
    /// Reads and validates a text without a section `[database]`.
    pub(crate) fn of_database(text: &str, database: Database) -> Result<Self, Error> {
        Self::read(text, [], Some(database))
    }

    /// What the relays read: for `pgbaton trace`, which the database does not tell.
    #[must_use]
    pub fn reads(self) -> Reads {
        let read = |fields: crate::config::RelayFields| {
            let read = match fields.source {
                SourceSpec::Native => Read::Outbox(fields.topics),
                SourceSpec::Table(spec) => Read::Table(spec),
            };
            Some((fields.name?, read))
        };
        Reads(self.relays.into_iter().filter_map(read).collect())
    }

    /// The relay that adopts this table: the one of this name, or the only one. `None` if there are no relays at all.
    ///
    /// # Errors
    /// A name that another kind of relay has, several relays and no name, or relays of which none adopts this table.
    pub fn adopting(self, table: &TableName, relay: Option<&str>) -> Result<Option<Configured>, Error> {
        let (mut found, any) = (Vec::new(), !self.relays.is_empty());
        for fields in self.relays {
            let (Some(name), Some(sink)) = (fields.name, fields.sink) else { continue };
            let asked = relay == Some(name.as_str());
            match fields.source {
                SourceSpec::Table(spec) if spec.table == *table && (asked || relay.is_none()) => {
                    let file = sink.path().map(ToOwned::to_owned);
                    found.push(Configured { name, spec, sink: Some(sink.build()), file });
                }
                _ if asked => {
                    return Err(Error::new(
                        Kind::Config,
                        format!("relay {name} of the configuration does not adopt {table}"),
                    ));
                }
                _ => {}
            }
        }
        if found.len() > 1 {
            return Err(Error::new(Kind::Config, format!("several relays of the configuration adopt {table}"))
                .hint("Name one with --relay; only one of them can run"));
        }
        if any && found.is_empty() {
            return Err(Error::new(Kind::Config, format!("no relay of the configuration adopts {table}")).hint(
                "Is its `table` written as here? Without the configuration (`--dsn`) a proposed relay is looked at",
            ));
        }
        Ok(found.pop())
    }
}
