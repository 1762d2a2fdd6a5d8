//! `pgbaton send`.

use std::io::Read;

use pgbaton::control;
use pgbaton::send::NewMessage;

use crate::args::SendArgs;
use crate::{Failure, print_json};

/// Inserts one message and prints its id and message id.
pub(crate) async fn run(args: SendArgs) -> Result<(), Failure> {
    let bytes = if args.stdin {
        let mut bytes = Vec::new();
        std::io::stdin()
            .read_to_end(&mut bytes)
            .map_err(|error| Failure::Usage(format!("standard input cannot be read: {error}")))?;
        Some(bytes)
    } else {
        args.payload.map(String::into_bytes)
    };
    if args.json.as_ref().is_some_and(|json| serde_json::from_str::<serde::de::IgnoredAny>(json).is_err()) {
        return Err(Failure::Usage("--json is not JSON".into()));
    }
    let SendArgs { topic, key, headers, json, delay, database, .. } = args;
    let message = NewMessage { topic, key, headers, json, bytes, delay };
    print_json(&control::send(&database.database()?, &message).await?)
}
