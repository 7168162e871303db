//! From a connection string (and the environment's switch) to a connected client. In a shell every command shares one.

use crate::args::Connect;
use crate::environment;
use crate::outcome::usage;
use anyhow::{Result, anyhow};
use std::ops::Deref;
use tiedkv_client::{Client, Config};

/// The connection string.
///
/// # Errors
/// When none was given; exit code 2.
pub fn url(connect: &Connect) -> Result<&str> {
    let missing = || usage(anyhow!("no cluster is named: give --cluster URL or set TIEDKV_CLUSTER"));
    connect.cluster.as_deref().ok_or_else(missing)
}

/// The settings that a connection string names, after the environment's switch. A deadline that it names bounds the
/// connecting as well: who asks for an answer within 300 ms wants to hear that nobody answers by then.
///
/// # Errors
/// When the string or the environment is wrong; exit code 2.
pub fn config(connect: &Connect) -> Result<Config> {
    environment::check_own_tied().map_err(usage)?;
    let url = url(connect)?;
    let mut config = Config::from_url(url).map_err(usage)?;
    if names(url, "deadline") && !names(url, "connect") {
        config.connect_deadline = config.connect_deadline.min(config.deadline);
    }
    Ok(config)
}

fn names(url: &str, setting: &str) -> bool {
    let settings = url.split_once('?').map_or("", |(_, settings)| settings);
    settings.split('&').any(|one| one.split('=').next() == Some(setting))
}

/// A client of that cluster: the shell's, if the command was typed there.
///
/// # Errors
/// As [`config`], or when no node answers.
pub async fn connect(connect: &Connect) -> Result<Connected> {
    match &connect.shared {
        Some(client) => Ok(Connected { client: client.clone(), own: false }),
        None => Ok(Connected { client: Client::connect(config(connect)?).await?, own: true }),
    }
}

/// A client of the command's own with changed settings; in a shell it is of the same session.
///
/// # Errors
/// As [`config`], or when no node answers.
pub async fn connect_with(connect: &Connect, change: impl FnOnce(&mut Config)) -> Result<Connected> {
    let mut config = config(connect)?;
    change(&mut config);
    let client = Client::connect(config).await?;
    if let Some(shared) = &connect.shared {
        client.observe(shared.token())?;
    }
    Ok(Connected { client, own: true })
}

/// A client for the time of one command.
#[derive(Debug)]
pub struct Connected {
    client: Client,
    own: bool,
}

impl Connected {
    /// Closes the connections unless others use them too.
    pub fn close(&self) {
        if self.own {
            self.client.close();
        }
    }
}

impl Deref for Connected {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_deadline_that_is_named_bounds_the_connecting() {
        let of = |query: &str| {
            let cluster = Some(format!("tiedkv://127.0.0.1:1/?certs=DIR{query}"));
            config(&Connect { cluster, print_config: false, shared: None }).unwrap().connect_deadline
        };
        assert_eq!(of("&deadline=300ms"), Duration::from_millis(300));
        assert_eq!(of("&policy=tied2&deadline=20s"), Duration::from_secs(5), "never more than without");
        assert_eq!(of("&deadline=300ms&connect=2s"), Duration::from_secs(2));
        assert_eq!(of(""), Duration::from_secs(5));
    }
}
