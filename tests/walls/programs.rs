//! Development programs in a cell: they run, and no call of theirs is reported as denied.

use crate::support::{
    Caller, Check, Claim, Failed, Need, claim, denials, equal, holds, processors, text,
};

pub const CLAIMS: &[Claim] = &[
    claim("processes_threads_and_sockets_work", python_works).needs(&[Need::Python]),
    claim("git_works", git_works).needs(&[Need::Git]),
    claim("a_compiler_and_its_program_work", gcc_works).needs(&[Need::Gcc]),
    claim("java_runs_and_sizes_itself_by_the_cell", java).wants(&[Need::Java]),
    claim("node_runs_and_sizes_itself_by_the_cell", node).wants(&[Need::Node]),
    claim("name_lookups_cause_no_denials", names).needs(&[Need::Python]),
    claim("an_agent_of_ssh_keeps_keys", ssh_agent).needs(&[Need::SshAgent]),
    claim("a_key_of_gpg_signs_commits", gpg).needs(&[Need::Gpg, Need::Git]),
    claim("nginx_serves_a_page_by_its_workers", nginx).wants(&[Need::Nginx]),
    claim("a_database_is_made_and_answers", postgres).wants(&[Need::Postgres]),
];

fn python_works(caller: &Caller) -> Check {
    let script = "
import asyncio, concurrent.futures, multiprocessing, socket, subprocess, tempfile, threading, sqlite3
def square(n): return n * n
with multiprocessing.Pool(2) as pool: print(pool.map(square, range(5)))
with concurrent.futures.ThreadPoolExecutor(4) as pool: print(sum(pool.map(square, range(5))))
async def main():
    async def serve(reader, writer):
        writer.write(await reader.readline()); await writer.drain(); writer.close()
    server = await asyncio.start_server(serve, '127.0.0.1', 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b'over tcp\\n'); print((await reader.readline()).decode().strip())
asyncio.run(main())
print(subprocess.run(['sort', '-r'], input='a\\nb\\n', capture_output=True, text=True).stdout.split())
with tempfile.NamedTemporaryFile() as f: f.write(b'x'); f.flush(); print(open(f.name).read())
db = sqlite3.connect('/workspace/db'); db.execute('create table t (n)'); db.execute('insert into t values (1)'); db.commit()
print(db.execute('select * from t').fetchall())";
    let file = caller.file("work.py", script)?;
    let ask = format!("{}:/mnt/work.py", file.display());
    let report = caller.json(&["--ro", &ask], &["/usr/bin/python3", "/mnt/work.py"])?;
    let expected = "[0, 1, 4, 9, 16]\n30\nover tcp\n['b', 'a']\nx\n[(1,)]\n";
    equal("python", (text(&report, "stdout"), denials(&report)), (expected, vec![]))
}

fn git_works(caller: &Caller) -> Check {
    let script = "git init -q . && git config user.name a && git config user.email a@b && \
        echo hi > f && git add f && git commit -qm one && git log --format=%s && git status --short";
    let report = caller.json(&[], &["bash", "-c", script])?;
    equal("git", (text(&report, "stdout"), denials(&report)), ("one\n", vec![]))
}

fn gcc_works(caller: &Caller) -> Check {
    let script = "printf '#include <stdio.h>\\nint main(void) { puts(\"built\"); }' > a.c && \
        gcc -O1 -o a a.c && ./a";
    let report = caller.json(&[], &["bash", "-c", script])?;
    equal("gcc", (text(&report, "stdout"), denials(&report)), ("built\n", vec![]))
}

/// libc asks by a netlink socket which addresses there are. A name that is not in `/etc/hosts` is
/// unknown for good: EAI_AGAIN would have programs try again.
fn names(caller: &Caller) -> Check {
    let report = caller.json(&[], &["getent", "ahostsv4", "localhost"])?;
    holds("getent", &report, text(&report, "stdout").starts_with("127.0.0.1"))?;
    equal("getent has no denials", denials(&report), vec![])?;
    let script = "import socket
print(sorted({a[4][0] for a in socket.getaddrinfo('localhost', 80, socket.AF_INET)}))
try: socket.getaddrinfo('example.org', 80)
except socket.gaierror as error: print(error.errno == socket.EAI_NONAME)
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9)";
    let report = caller.json(&[], &["/usr/bin/python3", "-c", script])?;
    equal("getaddrinfo", text(&report, "stdout"), "['127.0.0.1']\nTrue\n")?;
    holds(
        "another netlink",
        &report,
        text(&report, "stderr").contains("PermissionError: [Errno 1]"),
    )?;
    equal("is reported", denials(&report), vec![("socket".to_owned(), 1)])
}

/// A quarter of the memory it sees is the heap it takes by itself.
fn java(caller: &Caller) -> Check {
    let settings = ["java", "-XX:+PrintFlagsFinal", "-Xmx64m", "-version"];
    let report = caller.json(&["--memory", "512M"], &settings)?;
    let flag = |report: &serde_json::Value, name: &str| -> Option<u64> {
        let line = text(report, "stdout").lines().find(|line| line.contains(name))?.to_owned();
        line.split_whitespace().nth(3)?.parse().ok()
    };
    equal("the heap asked for", flag(&report, " MaxHeapSize "), Some(64 << 20))?;
    equal("nothing is denied", denials(&report), vec![])?;
    let report = caller.json(
        &["--memory", "512M"],
        &["java", "-XX:+PrintFlagsFinal", "-XshowSettings:system", "-version"],
    )?;
    equal("it ends well", report.get("exit_code"), Some(&0.into()))?;
    let heap = flag(&report, " MaxHeapSize ").unwrap_or_default();
    holds("the heap of a machine of 512 MiB", heap, (100 << 20..=128 << 20).contains(&heap))
}

fn node(caller: &Caller) -> Check {
    let script = "const os = require('os');
console.log(os.totalmem(), os.cpus().length, os.availableParallelism(), os.loadavg().join());
require('zlib').gzip('x', (error, zipped) => console.log(error, zipped.length > 0));
new (require('worker_threads').Worker)('console.log(6 * 7)', { eval: true });";
    let report = caller.json(&["--memory", "700M"], &["node", "-e", script])?;
    let runs_on = caller.bash_outside("nproc")?.trimmed().to_owned();
    let mut lines: Vec<&str> = text(&report, "stdout").lines().collect();
    lines.sort_unstable();
    let sizes = format!("{} {} {runs_on} 0,0,0", 700 << 20, processors());
    equal("node", (lines, denials(&report)), (vec!["42", sizes.as_str(), "null true"], vec![]))
}

/// Runs a script in a cell where names are guarded. Nothing of it may be reported as denied.
fn in_grant(caller: &Caller, script: &str) -> Result<String, Failed> {
    let path = caller.directory("granted")?.display().to_string();
    let options = ["--rw", &path, "--timeout", "120s"];
    let report = caller.json(&options, &["bash", "-c", script])?;
    let shown = format!("{}{}", text(&report, "stdout"), text(&report, "stderr"));
    equal(&shown, denials(&report), vec![])?;
    Ok(shown)
}

/// Agents make themselves untraceable before they write anything (PR_SET_DUMPABLE).
fn ssh_agent(caller: &Caller) -> Check {
    let script = "eval $(ssh-agent) > /dev/null && ssh-keygen -q -t ed25519 -N '' -C mine -f /tmp/key && \
        ssh-add -q /tmp/key && ssh-add -L | cut -d' ' -f1,3 && ssh-agent -k";
    let shown = in_grant(caller, script)?;
    let is_complete = shown.starts_with("ssh-ed25519 mine\n") && shown.contains("killed;");
    holds("a key", &shown, is_complete)
}

fn gpg(caller: &Caller) -> Check {
    let script = "export GNUPGHOME=/tmp/gnupg; mkdir -m 700 $GNUPGHOME; cd /tmp
        gpg --batch --quiet --passphrase '' --quick-gen-key 'A <a@b>' ed25519 2> err || cat err
        git init -q r && cd r && git config user.name A && git config user.email a@b && echo x > f && git add f
        git commit -q -S -m one && git log --format='%G? %s'; gpg --batch --quiet -K --with-colons | grep -c ^sec
        gpgconf --kill all; rm -r $GNUPGHOME && echo removed";
    equal("a signature", in_grant(caller, script)?.as_str(), "G one\n1\nremoved\n")
}

/// Its master is the owner of the channels' signals (F_SETOWN). A cell whose memory init watches has
/// no sendfile(2), which nginx takes for an error.
fn nginx(caller: &Caller) -> Check {
    let script = r#"cd /tmp; mkdir www; echo a page > www/index.html; t=/tmp/t
        echo "worker_processes 2; pid /tmp/pid; daemon off; events {} http { access_log off; sendfile off;
        client_body_temp_path $t; proxy_temp_path $t; fastcgi_temp_path $t; uwsgi_temp_path $t; scgi_temp_path $t;
        server { listen 127.0.0.1:8080; root /tmp/www; } }" > conf
        /usr/sbin/nginx -e /tmp/log -c /tmp/conf & master=$!
        for i in $(seq 200); do exec 3<> /dev/tcp/127.0.0.1/8080 && break; sleep 0.1; done 2> /dev/null
        printf 'GET / HTTP/1.0\r\n\r\n' >&3; tail -n 1 <&3; grep -c '[w]orker process' /proc/[0-9]*/cmdline | grep -c ':1$'
        kill -QUIT $master; wait $master; echo $?; grep -v io_setup log"#;
    let path = caller.directory("granted")?.display().to_string();
    let options = ["--rw", &path, "--timeout", "60s"];
    let report = caller.json(&options, &["bash", "-c", script])?;
    let shown = (text(&report, "stdout"), text(&report, "stderr"));
    equal("a page, workers, the end", shown, ("a page\n2\n0\n", ""))
}

/// It takes a segment of System V for a lock, and shared memory in `/dev/shm`.
fn postgres(caller: &Caller) -> Check {
    let script = "PATH=$(echo /usr/lib/postgresql/*/bin | cut -d' ' -f1):$PATH; export LC_ALL=C
        initdb -D /tmp/db > /tmp/log 2>&1 || cat /tmp/log
        pg_ctl -D /tmp/db -s -w -l /tmp/log -o '-k /tmp -h \"\"' start || cat /tmp/log
        psql -h /tmp -d postgres -Atc 'create table t (n int); insert into t values (42); select n from t' | tail -n 1
        pg_ctl -D /tmp/db -s stop && echo stopped";
    equal("an answer", in_grant(caller, script)?.as_str(), "42\nstopped\n")
}
