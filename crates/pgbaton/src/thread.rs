//! Work that has a thread to itself.

use tokio::sync::oneshot;

use crate::error::{Error, Kind};

/// Runs `work` on a thread of its own, on which nothing else runs. Returns when it has ended, also by a panic. Dropped, it
/// does not wait: the work is dropped at its next wait, with the connections it has opened.
///
/// # Errors
/// The system gives no thread, or nothing to wait with.
pub(crate) async fn on_its_own<F: Future<Output = ()>>(
    name: &'static str,
    work: impl FnOnce() -> F + Send + 'static,
) -> Result<(), Error> {
    let (_keep, dropped) = oneshot::channel::<()>();
    let (end, ended) = oneshot::channel();
    let run = move || {
        let result = tokio::runtime::Builder::new_current_thread().enable_all().build().map(|runtime| {
            runtime.block_on(async {
                tokio::select! {
                    biased;
                    _ = dropped => {}
                    () = work() => {}
                }
            });
        });
        // Whoever waited for it may be gone.
        let _ = end.send(result);
    };
    let failed = |error: std::io::Error| {
        Error::new(Kind::Internal, format!("the thread `{name}` cannot run"))
            .because(error)
            .hint("Look at the system's limits on threads and open files")
    };
    std::thread::Builder::new().name(name.into()).spawn(run).map_err(failed)?;
    // An error means that it panicked.
    ended.await.unwrap_or(Ok(())).map_err(failed)
}
