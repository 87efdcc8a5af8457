//! Facts about this machine from which `doctor` chooses its remedies.

use super::platform::Platform;
use super::trials::{self, NamespaceErrors, NamespaceKind};
use crate::commands::error::CliError;
use crate::commands::settings::{self, Settings};

/// The machine as it is before the first cell.
pub(super) struct Machine<'s> {
    pub settings: &'s Settings,
    pub namespaces: NamespaceErrors,
    /// `kernel.apparmor_restrict_unprivileged_userns` is 1.
    pub apparmor: bool,
    /// Value of `user.max_user_namespaces`.
    pub max_user_namespaces: Option<u64>,
    /// Value of `kernel.unprivileged_userns_clone`, which Debian's kernels had.
    pub debian_switch: Option<u64>,
    /// Kind of namespace that the kernel was built without.
    pub missing_namespace: Option<NamespaceKind>,
    /// Release of the kernel, by uname(2).
    pub release: String,
    pub platform: Platform,
    /// Path of this program, for an AppArmor profile that names it.
    pub program: String,
}

impl<'s> Machine<'s> {
    /// Tries the namespaces and reads the rest. Needs a single-threaded caller.
    ///
    /// # Errors
    /// No child can be made for the trial.
    pub(super) fn examine(settings: &'s Settings) -> Result<Self, CliError> {
        let namespaces = trials::namespaces(settings::id_range(&settings.loaded.config))
            .map_err(|errno| CliError::new(format!("namespaces cannot be probed: {errno}")))?;
        let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let is_refused = namespaces.clone != 0;
        let release = nix::sys::utsname::uname().map(|name| name.release().to_owned());
        let program = std::env::current_exe();
        Ok(Self {
            settings,
            namespaces,
            apparmor: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1),
            max_user_namespaces: number("/proc/sys/user/max_user_namespaces"),
            debian_switch: number("/proc/sys/kernel/unprivileged_userns_clone"),
            missing_namespace: is_refused.then(trials::missing_namespace).flatten(),
            // An unknown release counts as a new one.
            release: release.unwrap_or_default().to_string_lossy().into_owned(),
            platform: Platform::detect(),
            program: program.map_or_else(
                |_| "/usr/bin/cofferdam".to_owned(),
                |path| path.display().to_string(),
            ),
        })
    }
}
