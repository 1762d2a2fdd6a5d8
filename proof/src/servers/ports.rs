//! Free TCP ports for servers, below the range from which the kernel takes ports for outgoing
//! connections: a port of that range could be taken by any client while its server restarts.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Error;

const LOWEST: u16 = 10_000;
/// Linux hands out ports from 32768 on by itself.
const BEHIND_HIGHEST: u16 = 32_768;

/// How many ports this process has looked at, so that two clusters starting at once never try the same.
static LOOKED_AT: AtomicU32 = AtomicU32::new(0);

/// A port on 127.0.0.1 that nobody listens on now. Another process may take it before the caller does,
/// who then has to ask again.
pub(crate) fn free() -> Result<u16, Error> {
    let range = BEHIND_HIGHEST - LOWEST;
    // Processes begin at different places; the factor spreads neighbouring process ids.
    let start = std::process::id().wrapping_mul(997);
    for _ in 0..range {
        let step = LOOKED_AT.fetch_add(1, Ordering::Relaxed);
        let offset = start.wrapping_add(step) % u32::from(range);
        let Some(port) = u16::try_from(offset).ok().and_then(|offset| LOWEST.checked_add(offset)) else {
            continue;
        };
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(Error::new(format!("no free port from {LOWEST} to {}", BEHIND_HIGHEST - 1)))
}
