//! What columns of outboxes are called, in many applications: by their names without case and separators.

use std::collections::BTreeSet;

use crate::source::table::catalogue::Column;

/// Types of columns.
pub(super) const TEXTS: &[&str] = &["text", "varchar", "bpchar", "name", "enum"];
pub(super) const JSON: &[&str] = &["json", "jsonb"];
pub(super) const TIMES: &[&str] = &["timestamptz", "timestamp"];
pub(super) const INTEGERS: &[&str] = &["int2", "int4", "int8"];

/// Names of columns that hold one thing, the clearest first.
pub(super) const TOPIC: &[&str] = &[
    "topic",
    "topicname",
    "destination",
    "channel",
    "exchange",
    "queue",
    "queuename",
    "stream",
    "subject",
    "routingkey",
];
pub(super) const AGGREGATE_TYPE: &[&str] = &["aggregatetype", "aggregatename", "aggregate", "entitytype"];
pub(super) const TYPE: &[&str] =
    &["eventtype", "messagetype", "type", "eventname", "name", "event", "kind", "commandtype", "jobtype"];
/// Of these, the names of types that a receiver looks at.
pub(super) const EVENT_TYPE: &[&str] = &["eventtype", "messagetype", "type", "eventname"];
pub(super) const KEY: &[&str] = &[
    "key",
    "messagekey",
    "partitionkey",
    "kafkakey",
    "eventkey",
    "orderingkey",
    "groupkey",
    "shardkey",
    "aggregateid",
    "aggregateuuid",
    "entityid",
    "streamid",
    "subjectid",
    "siteid",
    "tenantid",
    "accountid",
    "customerid",
    "organizationid",
    "organisationid",
    "workspaceid",
    "orderid",
    "userid",
    "groupid",
];
pub(super) const PAYLOAD: &[&str] = &[
    "payload",
    "data",
    "body",
    "message",
    "content",
    "eventdata",
    "eventpayload",
    "messagebody",
    "messagepayload",
    "payloadjson",
    "eventbody",
    "event",
    "value",
    "json",
];
pub(super) const HEADERS: &[&str] =
    &["headers", "messageheaders", "eventheaders", "metadata", "eventmetadata", "meta", "attributes", "properties"];
pub(super) const CREATED_AT: &[&str] = &[
    "createdat",
    "insertedat",
    "createdon",
    "createdonutc",
    "createdatutc",
    "occurredat",
    "occurredon",
    "occurredonutc",
    "created",
    "createtime",
    "createdtime",
    "datecreated",
    "eventtime",
    "timestamp",
    "time",
    "ts",
];
/// Single headers, by the names that they are to have.
pub(super) const HEADER: &[(&str, &[&str])] = &[
    ("traceparent", &["traceparent"]),
    ("tracestate", &["tracestate"]),
    ("content-type", &["contenttype"]),
    ("correlation-id", &["correlationid"]),
    ("causation-id", &["causationid"]),
];
/// What a relay writes down to keep others from a row that it has taken.
pub(super) const CLAIMS: &[&str] = &[
    "lockedby",
    "lockedat",
    "lockeduntil",
    "lockowner",
    "locktoken",
    "lockid",
    "lockexpiresat",
    "locked",
    "claimedby",
    "claimedat",
    "claimeduntil",
    "claimtoken",
    "claimid",
    "leaseduntil",
    "leaseuntil",
    "leaseowner",
    "leaseexpiresat",
    "reservedby",
    "reservedat",
    "reserveduntil",
    "pickedby",
    "pickedat",
    "workerid",
    "ownerid",
    "processorid",
    "processingby",
    "processingstartedat",
    "startedat",
    "inprogress",
    "processing",
    "instanceid",
];
/// What it writes down of attempts that failed.
pub(super) const ATTEMPTS: &[&str] = &[
    "attempts",
    "attemptcount",
    "attempt",
    "retrycount",
    "retries",
    "tries",
    "deliveryattempts",
    "publishattempts",
    "failurecount",
    "maxattempts",
    "maxretries",
    "lasterror",
    "error",
    "errormessage",
    "failurereason",
    "lastattemptat",
    "lastattemptedat",
    "nextattemptat",
    "nextretryat",
    "retryat",
    "retryafter",
    "backoffuntil",
];
/// That a row is given up.
pub(super) const GIVEN_UP: &[&str] = &[
    "failedat",
    "failed",
    "dead",
    "deadat",
    "isdead",
    "isfailed",
    "deadlettered",
    "discardedat",
    "cancelledat",
    "deletedat",
];
/// That a row is not to be delivered before a moment.
pub(super) const LATER: &[&str] = &[
    "availableat",
    "visibleat",
    "visibleafter",
    "scheduledat",
    "scheduledfor",
    "deliverat",
    "deliverafter",
    "sendat",
    "sendafter",
    "processafter",
    "notbefore",
    "runat",
    "dueat",
    "publishat",
    "publishafter",
];

/// A name without case and separators.
pub(super) fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// Columns that mean nothing yet.
pub(super) struct Free<'a>(Vec<&'a Column>);

impl<'a> Free<'a> {
    pub(super) fn new(columns: &'a [Column]) -> Self {
        Self(columns.iter().collect())
    }

    /// The first of these names that there is, of one of these types (none: of any).
    pub(super) fn find(&self, names: &[&str], kinds: &[&str]) -> Option<&'a Column> {
        names.iter().find_map(|name| {
            let mut fitting = self.0.iter().filter(|column| kinds.is_empty() || kinds.contains(&column.kind.as_str()));
            fitting.find(|column| plain(&column.name) == *name).copied()
        })
    }

    /// The same, and it is not found again.
    pub(super) fn take(&mut self, names: &[&str], kinds: &[&str]) -> Option<&'a Column> {
        let found = self.find(names, kinds)?;
        self.drop_all(&[found.name.as_str()]);
        Some(found)
    }

    /// All columns of these names.
    pub(super) fn take_all(&mut self, names: &[&str]) -> Vec<&'a str> {
        let is = |column: &&Column| names.contains(&plain(&column.name).as_str());
        let found: Vec<&'a str> = self.0.iter().filter(|c| is(c)).map(|column| column.name.as_str()).collect();
        self.drop_all(&found);
        found
    }

    pub(super) fn drop_all(&mut self, names: &[&str]) {
        let names: BTreeSet<&str> = names.iter().copied().collect();
        self.0.retain(|column| !names.contains(column.name.as_str()));
    }

    pub(super) fn left(&self) -> &[&'a Column] {
        &self.0
    }
}
