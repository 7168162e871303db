//! From a connection string (and the environment's switch) to a connected client.

use crate::args::Connect;
use crate::environment;
use crate::outcome::usage;
use anyhow::{Result, anyhow};
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

/// A client of that cluster.
///
/// # Errors
/// As [`config`], or when no node answers.
pub async fn connect(connect: &Connect) -> Result<Client> {
    Ok(Client::connect(config(connect)?).await?)
}
