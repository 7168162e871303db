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

/// The settings that a connection string names, after the environment's switch.
///
/// # Errors
/// When the string or the environment is wrong; exit code 2.
pub fn config(connect: &Connect) -> Result<Config> {
    environment::check_own_tied().map_err(usage)?;
    Config::from_url(url(connect)?).map_err(usage)
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
