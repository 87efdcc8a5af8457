"""The cases: a script for each client, what it reaches, and what it prints bare.

`egress` is what `--egress` says, `profile` a profile in place of it; `rust` gives the tool chain of the user who runs this,
`uv` that client; `needs` names variables of both runs.
"""

NAMES = [
    "pypi.org", "files.pythonhosted.org", "registry.npmjs.org", "index.crates.io", "static.crates.io", "proxy.golang.org",
    "github.com", "deb.debian.org", "api.example.org", "pkg.example.org", "web.example.org", "db.example.org",
    "ssh.example.org",
]

CONFIGURATION = """\
schema = 1
[[secret]]
name = "lab"
from = "file:{secret}"
"""

PROFILE = """\
schema = 1
name = "lab"
extends = "bash"
description = "bash, and the lab's API, index and repository by a secret"
network = { class = "allow-list", why = "what the test reaches" }

[[egress]]
id = "api"
hosts = ["api.example.org"]
ports = [443]
http = [{ methods = ["GET", "PUT"], paths = ["/ok/**"] }]
secret = { name = "lab", header = "authorization", form = "bearer", env = "API_TOKEN" }
why = "an API, by a header"

[[egress]]
id = "index"
hosts = ["pkg.example.org"]
ports = [443]
http = [{ methods = ["GET", "HEAD"], paths = ["/simple/**"] }]
secret = { name = "lab", header = "authorization", form = "basic", env = "PKG_TOKEN" }
why = "a private index, by a password"

[[egress]]
id = "clone"
hosts = ["github.com"]
ports = [443]
http = [
    { methods = ["GET"], paths = ["/**"] },
    { methods = ["POST"], paths = ["/*/*/git-upload-pack"] },
]
secret = { name = "lab", header = "authorization", form = "basic", env = "GH_TOKEN" }
why = "clone, not push"
"""

# Programs with bundled roots are pointed to the host's; in a cell with intercepted requests the variable is set.
ROOTS = "/etc/ssl/certs/ca-certificates.crt"
NODE = f"export NODE_EXTRA_CA_CERTS=${{NODE_EXTRA_CA_CERTS:-{ROOTS}}}"
UV = f"export PATH=$PATH:/opt/uv SSL_CERT_FILE=${{SSL_CERT_FILE:-{ROOTS}}}"
URL = "https://api.example.org/ok/a"
WELCOME = r"welcome, GET of 0 bytes with Bearer "

APT = """
mkdir -p apt/etc/apt.conf.d apt/etc/preferences.d apt/state/lists/partial apt/cache/archives/partial
echo "deb [signed-by=$PWD/key.asc] SCHEME://deb.debian.org/debian lab main" >apt/etc/sources.list
: >apt/status
cat >apt.conf <<END
Dir "$PWD/apt"; Dir::Etc "etc"; Dir::State "state"; Dir::State::status "$PWD/apt/status"; Dir::Cache "cache";
APT::Architecture "amd64"; Acquire::Languages "none";
END
export APT_CONFIG=$PWD/apt.conf
curl -sSf -o key.asc https://deb.debian.org/debian/key.asc
apt-get -qq update && apt-get -qq download tiny-lab && dpkg-deb -x tiny-lab_*.deb out && cat out/usr/share/tiny-lab/word
"""

SSH = """
umask 077 && mkdir -p ssh && cd ssh && printf '%s\\n' "$SSH_KEY" >key && echo "[ssh.example.org]:2222 $SSH_HOST" >known
options="-F none -o BatchMode=yes -o UserKnownHostsFile=known -o StrictHostKeyChecking=yes -i key"
"""

JAVA = f"""
cat >Get.java <<'END'
public class Get {{
    public static void main(String[] words) throws Exception {{
        var it = new java.net.URL("{URL}").openConnection();
        it.setRequestProperty("Authorization", "Bearer " + System.getenv("API_TOKEN"));
        System.out.print(new String(it.getInputStream().readAllBytes()));
    }}
}}
END
java Get.java
"""

GO = f"""
cat >get.go <<'END'
package main

import ("io"; "net/http"; "os")

func main() {{
    request, _ := http.NewRequest("GET", "{URL}", nil)
    request.Header.Set("Authorization", "Bearer "+os.Getenv("API_TOKEN"))
    answer, err := http.DefaultClient.Do(request)
    if err != nil {{ panic(err) }}
    io.Copy(os.Stdout, answer.Body)
}}
END
go run get.go
"""

PYTHON = f"""
python3 -c '
import os, urllib.request as r
q = r.Request("{URL}", headers={{"Authorization": "Bearer " + os.environ["API_TOKEN"]}})
print(r.urlopen(q).read().decode(), end="")'
"""

FETCH = f"""
{NODE}
node -e 'fetch("{URL}", {{headers: {{Authorization: "Bearer " + process.env.API_TOKEN}}}}).then(async r => console.log(await r.text()))'
"""

REQUEST = "printf 'GET /ok/a HTTP/1.1\\r\\nHost: api.example.org\\r\\nConnection: close\\r\\nAuthorization: Bearer %s\\r\\n\\r\\n' \"$API_TOKEN\""

CASES = {
    # By the shipped presets, unread.
    "npm": {
        "egress": ["npm"],
        "script": f"{NODE}; npm init -y >/dev/null && npm install --no-audit --no-fund --silent tiny-lab && "
                  "node -e 'console.log(require(\"tiny-lab\"))' && grep -o '\"integrity\": \"sha512-.*' package-lock.json && "
                  "npm view tiny-lab version",
        "expected": "a package of the lab\n\"integrity\": .*\n1.0.0",
    },
    "pip": {
        "egress": ["python"],
        "script": "/usr/bin/python3 -m pip install -q --no-cache-dir --target out tiny-lab && "
                  "PYTHONPATH=out python3 -c 'import tiny_lab; print(tiny_lab.WORD)'",
        "expected": "a wheel of the lab",
    },
    "cargo": {
        "egress": ["cargo"],
        "rust": True,
        "script": "cargo -q init --vcs none use-it && cd use-it && cargo -q add tiny-lab@1 && "
                  "echo 'fn main() { println!(\"{}\", tiny_lab::WORD) }' >src/main.rs && cargo -q run",
        "expected": "a crate of the lab",
    },
    "go": {
        "egress": ["go"],
        "script": "export GONOSUMDB=example.org && go mod init example.org/use 2>/dev/null && "
                  "printf 'package main\\n\\nimport \"example.org/tiny\"\\n\\nfunc main() { println(tiny.Word) }\\n' >main.go && "
                  "go get example.org/tiny@latest 2>/dev/null; go run . 2>&1",
        "expected": "a module of the lab",
    },
    "git": {
        "egress": ["git-https"],
        "script": "git clone -q https://github.com/o/r.git r && cd r && cat words && git -c user.name=a -c user.email=a@example.org "
                  "commit -q --allow-empty -m more && git push -q origin HEAD:refs/heads/from-$$ && git ls-remote -q origin main | wc -l",
        "expected": "public words\n1\n",
    },
    "apt-http": {"egress": ["debian"], "script": APT.replace("SCHEME", "http"), "expected": "a package of Debian of the lab"},
    "apt-https": {"egress": ["debian"], "script": APT.replace("SCHEME", "https"), "expected": "a package of Debian of the lab"},
    # By host and port.
    "ssh": {
        "egress": ["ssh.example.org:2222"],
        "needs": ["SSH_KEY", "SSH_HOST"],
        "script": SSH + "ssh $options -p 2222 root@ssh.example.org 'tr a-z A-Z; exit 3' <<<'over there'; echo $?; "
                        "head -c 3000000 /dev/zero >big && scp -q $options -P 2222 big root@ssh.example.org:/tmp/lab-big-$$ && "
                        "ssh $options -p 2222 root@ssh.example.org \"cksum </tmp/lab-big-$$; rm /tmp/lab-big-$$\"",
        "expected": "OVER THERE\n3\n\\d+ 3000000",
    },
    "psql": {
        "egress": ["db.example.org:5432"],
        "script": "export PGPASSWORD=of-the-lab; "
                  f"psql -X -At 'host=db.example.org user=lab dbname=postgres sslmode=verify-full sslrootcert={ROOTS}' "
                  "-c 'select ssl, version from pg_stat_ssl where pid = pg_backend_pid()' "
                  "-c 'select sum(n), md5(string_agg(n::text, null)) from generate_series(1, 200000) n' "
                  "-c '\\copy (select generate_series(1, 300000)) to numbers' && cksum <numbers",
        "expected": "t\\|TLSv1.3\n20000100000\\|",
    },
    "chromium": {
        "egress": ["web.example.org:443"],
        "script": "mkdir -p $HOME/.pki/nssdb && certutil -d sql:$HOME/.pki/nssdb -N --empty-password && "
                  f"awk '/BEGIN/ {{ text = \"\" }} {{ text = text $0 \"\\n\" }} END {{ printf \"%s\", text }}' {ROOTS} >ca.pem && "
                  "certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n lab -i ca.pem && "
                  "chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --virtual-time-budget=20000 "
                  "--dump-dom https://web.example.org/ 2>chromium.log || cat chromium.log",
        "expected": "got /part1 got /part2 .* got /part8",
    },
    # With requests read and a secret, by each library of TLS.
    "curl-secret": {
        "profile": "lab",
        "script": f"curl -sS -H \"Authorization: Bearer $API_TOKEN\" {URL}; head -c 300000 /dev/zero | "
                  f"curl -sS -T - -H \"Authorization: Bearer $API_TOKEN\" {URL}",
        "expected": WELCOME + r".*\nwelcome, PUT of 300000 bytes",
    },
    "openssl-secret": {
        "profile": "lab",
        "script": f"{REQUEST} | openssl s_client -quiet -verify_return_error -verify_hostname api.example.org "
                  "-servername api.example.org -connect api.example.org:443 2>/dev/null | tail -1",
        "expected": WELCOME,
    },
    "gnutls-secret": {
        "profile": "lab",
        "script": f"wget -qO- --header=\"Authorization: Bearer $API_TOKEN\" {URL}; "
                  f"{{ {REQUEST}; sleep 1; }} | gnutls-cli api.example.org | tail -2 | grep welcome",
        "expected": WELCOME + r".*\n" + WELCOME,
    },
    "rustls-secret": {
        "profile": "lab",
        "uv": True,
        "script": f"{UV}; uv pip install -q --no-cache --python /usr/bin/python3 --target out "
                  "--index-url https://x:$PKG_TOKEN@pkg.example.org/simple/ tiny-lab && "
                  "PYTHONPATH=out python3 -c 'import tiny_lab; print(tiny_lab.WORD)'",
        "expected": "a wheel of the lab",
    },
    "pip-secret": {
        "profile": "lab",
        "script": "/usr/bin/python3 -m pip install -q --no-cache-dir --target out --index-url https://x:$PKG_TOKEN@pkg.example.org/simple/ tiny-lab && "
                  "PYTHONPATH=out python3 -c 'import tiny_lab; print(tiny_lab.WORD)'",
        "expected": "a wheel of the lab",
    },
    "go-secret": {"profile": "lab", "script": GO, "expected": WELCOME},
    "node-secret": {"profile": "lab", "script": FETCH, "expected": WELCOME},
    "python-secret": {"profile": "lab", "script": PYTHON, "expected": WELCOME},
    "java-secret": {"profile": "lab", "script": JAVA, "expected": WELCOME},
}
