//! Work that has a thread to itself.

use tokio::sync::oneshot;

/// Runs `work` on a thread of its own, on which nothing else runs. Returns when it has ended, also by a panic; dropped,
/// it has the work dropped at its next wait.
pub(crate) async fn on_its_own<F: Future<Output = ()>>(name: &str, work: impl FnOnce() -> F + Send + 'static) {
    let (keep, dropped) = oneshot::channel::<()>();
    let (running, ended) = oneshot::channel::<()>();
    let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
        let _running = running;
        match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(async {
                tokio::select! {
                    biased;
                    _ = dropped => {}
                    () = work() => {}
                }
            }),
            Err(error) => {
                tracing::error!(%error, "a thread cannot wait for anything");
            }
        }
    });
    match thread {
        // Nothing is ever sent: an error means that the thread has ended.
        Ok(_) => drop(ended.await),
        Err(error) => tracing::error!(%error, name, "the thread cannot be started"),
    }
    drop(keep);
}
