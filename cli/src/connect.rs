//! From a connection string (and the environment's switch) to a connected client.

use crate::args::Connect;
use crate::environment;
use crate::outcome::usage;
use anyhow::Result;
use tiedkv_client::{Client, Config};

/// The settings that a connection string names, after the environment's switch.
///
/// # Errors
/// When the string or the environment is wrong; exit code 2.
pub fn config(connect: &Connect) -> Result<Config> {
    let mut config = Config::from_url(&connect.cluster).map_err(usage)?;
    config.policy = environment::policy(config.policy).map_err(usage)?;
    Ok(config)
}

/// A client of that cluster.
///
/// # Errors
/// As [`config`], or when no node answers.
pub async fn connect(connect: &Connect) -> Result<Client> {
    Ok(Client::connect(config(connect)?).await?)
}
