//! What processes have used, from `/proc`.

use std::path::PathBuf;
use std::time::Duration;

use crate::Error;

/// Processor time of these processes so far, all their threads included.
pub(super) fn processor(processes: &[u32]) -> Result<Duration, Error> {
    processes.iter().map(|process| processor_of(*process)).sum()
}

fn processor_of(process: u32) -> Result<Duration, Error> {
    let text = read(process, "stat")?;
    // The name before the last parenthesis may hold anything; then come the fields from the third one on.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks: Vec<u64> = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse().ok()).collect();
    let [user, system] = ticks.as_slice() else {
        return Err(Error::new(format!("/proc/{process}/stat has another form")));
    };
    let a_second = rustix::param::clock_ticks_per_second().max(1);
    Ok(Duration::from_nanos((user + system) * 1_000_000_000 / a_second))
}

/// The most memory a process has had resident at once, in bytes.
pub(super) fn most_resident(process: u32) -> Result<f64, Error> {
    let text = read(process, "status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kilobytes
        .map(|kilobytes| kilobytes * 1_024.0)
        .ok_or_else(|| Error::new(format!("/proc/{process}/status has no VmHWM")))
}

fn read(process: u32, file: &str) -> Result<String, Error> {
    let path = PathBuf::from(format!("/proc/{process}/{file}"));
    std::fs::read_to_string(&path).map_err(|cause| Error::because(format!("reading {}", path.display()), &cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_something() {
        let own = std::process::id();
        assert!(most_resident(own).unwrap() > 0.0);
        assert!(processor(&[own, own]).unwrap() <= Duration::from_secs(3_600));
    }
}
