//! Compiles the library of `powercut.c`, and makes programs that start nodes with it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("../../powercut/powercut.c");
/// While a node's folder has this file, its syncs take [`SLOW_MICROS`] longer.
pub const SLOW_FILE: &str = "slow";
/// While a node's folder has this file, calls fail with EIO: it says which (`CALL PART`, see `powercut.c`).
pub const FAIL_FILE: &str = "fail";
/// How much longer, microseconds.
pub const SLOW_MICROS: u32 = 40_000;

/// Compiles the library into a folder.
///
/// # Errors
/// When there is no C compiler, or it has something to say.
pub fn compile(folder: &Path) -> Result<PathBuf, String> {
    let (source, library) = (folder.join("powercut.c"), folder.join("powercut.so"));
    std::fs::write(&source, SOURCE).map_err(|error| error.to_string())?;
    let compiled = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .args(["-ldl", "-lpthread"])
        .output()
        .map_err(|error| format!("cc: {error}"))?;
    if !compiled.status.success() {
        return Err(String::from_utf8_lossy(&compiled.stderr).into_owned());
    }
    Ok(library)
}

/// A program in `folder` that starts a node of `binary` with the library; the node's folder is that of its settings file
/// (`start --config FILE ...`), and its disk obeys [`SLOW_FILE`] and [`FAIL_FILE`] there.
///
/// # Errors
/// As [`compile`], or when the folder cannot be written.
pub fn wrap(folder: &Path, binary: &Path) -> Result<PathBuf, String> {
    let library = compile(folder)?;
    let program = folder.join("node");
    let script = format!(
        "#!/bin/sh\nnode=\"$(dirname \"$3\")\"\nexport POWERCUT_ROOT=\"$node\" \
         POWERCUT_FAIL_WHILE=\"$node/{FAIL_FILE}:5\" POWERCUT_SLOW_WHILE=\"$node/{SLOW_FILE}:{SLOW_MICROS}\"\n\
         LD_PRELOAD='{}' exec '{}' \"$@\"\n",
        library.display(),
        binary.display()
    );
    let written = std::fs::write(&program, script)
        .and_then(|()| std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)));
    written.map_err(|error| format!("{}: {error}", program.display()))?;
    Ok(program)
}
