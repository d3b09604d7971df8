//! Flags and the report of a program.

use std::env;
use std::error::Error;
use std::process::exit;
use std::str::FromStr;
use std::time::Duration;

pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Version of async-nats. `Cargo.toml` pins it, and a crate does not know the versions of others.
pub const CLIENT: &str = "0.51.0";

/// Returns the value of `-name=value` on the command line, or the default.
pub fn flag<T: FromStr>(name: &str, default: &str) -> Outcome<T>
where
    T::Err: Error + Send + Sync + 'static,
{
    let start = format!("-{name}=");
    let given = env::args().find_map(|arg| arg.strip_prefix(&start).map(str::to_owned));
    Ok(given.as_deref().unwrap_or(default).parse()?)
}

/// Runs a program, prints what it returns, and gives up after two minutes. Exit status 1: not all was done in time,
/// 2: it did not run.
pub async fn run(work: impl Future<Output = Outcome<String>>) {
    match tokio::time::timeout(Duration::from_secs(120), work).await {
        Ok(Ok(report)) => println!("{report}"),
        Ok(Err(error)) => {
            eprintln!("{error}");
            exit(2);
        }
        Err(_) => {
            eprintln!("not all was done before the deadline");
            exit(1);
        }
    }
}
