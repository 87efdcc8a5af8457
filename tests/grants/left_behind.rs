//! What a cell leaves in a repository for git on the host: names of submodules and worktrees, links of files that git
//! replaces, and files that git reads without a check.

use crate::parts::cell_and_host_output;
use crate::support::{Caller, Check, Claim, Need, claim, equal};

pub const CLAIMS: &[Claim] =
    &[claim("a_submodule_or_worktree_is_guarded_whatever_its_name", any_name)
        .needs(&[Need::Git, Need::Python])];

/// Among references cells make files with the names of a repository's parts. A submodule's name may have `refs` in it.
fn any_name(caller: &Caller) -> Check {
    let more = "git init -q ../sub && w=../w-$(basename $PWD) && git -C ../sub -c user.name=n -c user.email=e commit -q --allow-empty -m s && \
        for name in refs/heads/x logs lib/hooks; do git -c protocol.file.allow=always submodule --quiet add \
        --name $name ../sub m/$name; done && git commit -qam m && git worktree add -q $w/refs && \
        git worktree add -q $w/logs";
    let cell = "exec 2> /dev/null
        for at in modules/refs/heads/x modules/logs modules/lib/hooks worktrees/refs worktrees/logs; do
            mv .git/$at/HEAD .git/$at/H; mkdir -p .git/$at/hooks
            printf '[core]\\n\\tfsmonitor = \"echo RAN >> ~/ran; false\"\\n' >> .git/$at/config && echo config $at
            printf '#!/bin/sh\\necho RAN >> ~/ran' > .git/$at/hooks/post-checkout && echo hook $at
            chmod 755 .git/$at/hooks/post-checkout; mv .git/$at/H .git/$at/HEAD
            : >> .git/$at/index && echo index $at; echo x > .git/$at/MERGE_RR && echo conflicts $at
            mv .git/$at .git/moved && echo moved $at
        done
        mkdir -p .git/modules/refs/heads/y; echo > .git/modules/refs/heads/y/config && echo new
        for m in m/refs/heads/x m/logs m/lib/hooks; do
            cd /workspace/$m; git checkout -qb new && echo > f && git add f && git -c user.name=n -c user.email=e commit -qm f && git branch remotes/config
            git log --oneline | wc -l; done";
    let host = "for m in m/refs/heads/x m/logs m/lib/hooks ../w-$(basename $PWD)/*; do
        git -C $m checkout -q --detach 2>&1; git -C $m status --short; done; cat ~/ran 2> /dev/null";
    let seen = cell_and_host_output(caller, ("names", &[]), more, (cell, host))?;
    equal("git", (seen.0.as_str(), seen.1.as_str()), ("2\n2\n2", ""))
}
