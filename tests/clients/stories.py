"""Stories of a first day with an agent, each as calls of `bash` with words that the model must be shown of them.

`before` is a script that the user runs outside, in the project's directory, and `serve` has arguments of the server.
`{at}` in a step or an argument is the directory above the project. Each step is a call's arguments, words that
the model must be shown of its result, and words that it must not be shown.
"""


def step(command, *has, lacks=(), **more):
    return {"arguments": {"command": command, **more}, "has": has, "lacks": lacks}


def wrong(arguments, *has):
    return {"arguments": arguments, "has": has, "lacks": ()}


BOTH = ("claude-code", "codex")

STORIES = [
    {
        "name": "reasons",
        "why": "Claude Code shows a model the fields of a success and the text of an error, Codex the fields of both.",
        "clients": BOTH,
        "steps": [
            step("echo hi", '"stdout":"hi\\n"', lacks=("usage", "bytes")),
            wrong({"cmd": "ls"}, "unknown field `cmd`", "did you mean `command`?"),
            step("sleep 600", "timed out after 1 s", timeout=1),
            step("exit 3", '"exit_code":3', "the shell has ended; the next call starts a new one"),
            step("true", "time limit 600 s, which is less than was asked for", timeout=9999),
            step("sleep 600", '"outcome":"running"', "the session `default` is free", "bash_kill", background=True),
            step("unshare -Ur true", "unshare", "denials"),
            step("yes | head -n 100000", '"truncated":true', '"stdout_bytes":200000', "reads the rest of the output"),
            wrong({"command": "true", "session": "a b"}, "session"),
        ],
    },
    {
        "name": "reasons-in-text",
        "why": "Gemini CLI and opencode show a model the text alone. Gemini checks arguments by the schema itself.",
        "clients": ("gemini", "opencode"),
        "steps": [
            step("echo hi", "hi\n[exit 0"),
            step("sleep 600", "timed out after 1 s", timeout=1),
            step("exit 3", "exit 3", "the shell has ended; the next call starts a new one"),
            step("sleep 600", "still running", "the session `default` is free", "bash_kill", background=True),
            step("unshare -Ur true", "denied: system call unshare, once"),
        ],
    },
    {
        "name": "wrong-arguments-in-text",
        "clients": ("opencode",),
        "steps": [
            wrong({"cmd": "ls"}, "unknown field `cmd`", "did you mean `command`?"),
            step("true", "time limit 600 s, which is less than was asked for", timeout=9999),
            wrong({"command": "true", "session": "a b"}, "`session` must be 1 to 64 letters"),
        ],
    },
    {
        "name": "edit-make-gcc",
        "before": "printf 'int main(void){return 41;}\\n' > main.c; printf 'a.out: main.c\\n\\tcc main.c\\n' > Makefile",
        "steps": [
            step("sed -i s/41/42/ main.c && make && ./a.out", '"exit_code":42', "cc main.c"),
            step("cat main.c", "return 42"),
        ],
    },
    {
        "name": "pytest-in-venv",
        "before": "/usr/bin/python3 -m venv .venv && .venv/bin/pip install -q pytest==8.4.2 && "
        "printf 'def test_one(): assert 6 * 7 == 42\\n' > test_one.py",
        "steps": [step(".venv/bin/pytest -q", "1 passed"), step(". .venv/bin/activate && pytest -q", "1 passed")],
    },
    {
        "name": "npm-test",
        "before": "npm init -y >/dev/null && npm install --silent is-number@7.0.0 && npm pkg set "
        "scripts.test='node -e \"console.log(require(\\`is-number\\`)(7))\"'",
        "steps": [step("npm test --silent", "true", lacks=("ENOENT",))],
    },
    {
        "name": "cargo-from-the-home",
        "rust": True,
        "before": "cargo init -q --vcs none --name story && cargo add -q itoa@1 && cargo fetch -q && "
        "printf 'fn main(){println!(\"{}\",itoa::Buffer::new().format(42))}\\n' > src/main.rs",
        "steps": [step("cargo build -q && target/debug/story", '"stdout":"42\\n"')],
    },
    {
        "name": "git",
        "before": "git init -q -b main . && git config --global user.name Me && git config --global user.email me@example.org && "
        "git commit -q --allow-empty -m first",
        "steps": [
            step("echo x > file && git add file && git commit -qm second && git log -1 --format=%an:%ae:%s",
                 "Me:me@example.org:second"),
            step("git worktree add tree", "clone to /tmp and push back"),
            step("git clone -q /workspace /tmp/work && cd /tmp/work && git switch -qc topic && "
                 "git commit -q --allow-empty -m third && git push -q origin topic && git -C /workspace branch", "topic"),
        ],
    },
    {
        "name": "javac",
        "before": "printf 'class A{public static void main(String[] a){System.out.println(6*7);}}\\n' > A.java",
        "steps": [step("javac A.java && java A", '"stdout":"42\\n"')],
    },
    {
        "name": "dev-server-and-curl",
        "before": "echo served > page",
        "steps": [
            step("python3 -m http.server 8000", '"outcome":"running"', background=True),
            step("curl -s --retry 20 --retry-connrefused --retry-delay 1 http://127.0.0.1:8000/page", "served"),
        ],
    },
    {
        "name": "out-of-memory",
        "before": "printf 'x = []\\nwhile True: x.append(bytearray(1 << 20))\\n' > grow.py",
        "steps": [
            step("python3 grow.py", "emory"),
            step("echo alive", "alive"),
        ],
    },
    {
        "name": "large-build",
        "serve": ["--memory", "256M"],
        "before": "python3 -c 'print(\"int a[]={\" + \",\".join(map(str, range(3000000))) + \"};\")' > large.c && "
        "echo 'int main(void) { return 0; }' > small.c",
        "steps": [
            # With a small one at the same time, which still succeeds.
            step("make -k -j2 large.o small.o", "emory", timeout=90),
            step("make small && ./small && echo built", "built"),
        ],
    },
    {
        "name": "terminal",
        "steps": [
            step("python3 -c 'import os; print(os.isatty(0), os.get_terminal_size().columns)'", "True 80", tty=True),
            step("echo 'x = 1' > a.py && python3 -m pdb -c 'p 6 * 7' -c quit a.py", "42", tty=True),
        ],
    },
    {
        "name": "pnpm-next",
        "why": "Many processes that end at once, with large heaps, are not taken for a cell that is over its memory.",
        "serve": ["--egress", "npm"],
        "before": "npm init -y >/dev/null && npm install --silent pnpm@10.34.0",
        "steps": [
            step("kept=yes; mkdir app && cd app && npm init -y >/dev/null && "
                 "../node_modules/.bin/pnpm add next react react-dom typescript", "dependencies:", '"exit_code":0', timeout=100),
            step("echo kept=$kept; ls node_modules", "kept=yes", "next", "react-dom", "typescript"),
        ],
    },
    {
        "name": "uv",
        "why": "uv makes a `.git` in its cache, and names are guarded in the workspace alone.",
        "serve": ["--egress", "python"],
        "before": "/usr/bin/python3 -m venv .tools && .tools/bin/pip install -q uv==0.9.2",
        "steps": [
            # By default uv trusts only its bundled authorities, which some networks replace.
            step("export UV_NATIVE_TLS=1; cd /workspace && .tools/bin/uv venv -q --python /usr/bin/python3 .venv && "
                 ".tools/bin/uv pip install -q six==1.16.0 && .venv/bin/python -c 'import six; print(six.__version__)'",
                 '"stdout":"1.16.0\\n"', lacks=("denied",)),
            step("ls -A /cache/uv/sdists-v9", ".git"),
        ],
    },
    {
        "name": "poetry",
        "serve": ["--egress", "python"],
        "before": "/usr/bin/python3 -m venv .tools && .tools/bin/pip install -q poetry==1.8.5",
        "steps": [
            # By default poetry trusts only its bundled authorities, which some networks replace. Some mirrors have the
            # index of files alone.
            step("export REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt; .tools/bin/poetry new -q demo && cd demo && "
                 "../.tools/bin/poetry source add -q --priority=primary index https://pypi.org/simple/ && "
                 "../.tools/bin/poetry add -q six==1.16.0 && ../.tools/bin/poetry run python -c 'import six; print(six.__version__)'",
                 "1.16.0\\n", '"exit_code":0', lacks=("denied",), timeout=90),
            step("../.tools/bin/poetry install && ../.tools/bin/poetry build -q && ls dist; ../.tools/bin/poetry env info -p",
                 "Installing the current project: demo", "demo-0.1.0.tar.gz", "/cache/poetry/virtualenvs/"),
        ],
    },
    {
        "name": "vite",
        "why": "vite asks for the interfaces of the machine, to print its addresses.",
        "before": "npm init -y >/dev/null && npm install --silent vite@6.4.1 && "
        "echo '<script type=module src=/m.js></script>' > index.html && echo 'document.title = 6 * 7' > m.js",
        "steps": [
            step("node_modules/.bin/vite build", "built in", "dist/index.html", '"exit_code":0'),
            step("node_modules/.bin/vite --host > log 2>&1", '"outcome":"running"', background=True),
            step("curl -s --retry 30 --retry-connrefused --retry-delay 1 http://127.0.0.1:5173/m.js; cat log",
                 "document.title = 6 * 7", "Network:", "http://127.0.1.1:5173/", lacks=("system error",)),
        ],
    },
    {
        "name": "next",
        "why": "next asks for the interfaces of the machine too, and compiles pages when they are asked for.",
        "before": "echo '{\"private\": true}' > package.json && npm install --silent next@15.5.0 react@19.1.0 react-dom@19.1.0 && "
        "mkdir app && echo 'export default function Page() { return <p>{6 * 7}</p> }' > app/page.jsx && "
        "echo 'export default function Layout({ children }) { return <html><body>{children}</body></html> }' > app/layout.jsx",
        "steps": [
            step("NEXT_TELEMETRY_DISABLED=1 node_modules/.bin/next dev > log 2>&1", '"outcome":"running"', background=True),
            step("curl -s --retry 30 --retry-connrefused --retry-delay 1 --max-time 100 http://127.0.0.1:3000/; cat log",
                 "<p>42</p>", "Ready in", lacks=("system error",), timeout=110),
        ],
    },
    {
        "name": "mvn",
        "why": "Debian's maven reads its settings in /etc. Its repository of Debian's packages needs no network.",
        "before": "mkdir -p src/main/java && "
        "echo 'public class A { public static void main(String[] a) { System.out.println(6 * 7); } }' > src/main/java/A.java && "
        "echo '<project><modelVersion>4.0.0</modelVersion><groupId>g</groupId><artifactId>a</artifactId><version>1</version>"
        "<properties><maven.compiler.source>11</maven.compiler.source><maven.compiler.target>11</maven.compiler.target>"
        "<project.build.sourceEncoding>UTF-8</project.build.sourceEncoding></properties></project>' > pom.xml && "
        "echo '<settings><mirrors><mirror><id>debian</id><mirrorOf>*</mirrorOf><url>file:///usr/share/maven-repo</url></mirror>"
        "</mirrors></settings>' > settings.xml",
        "steps": [
            step("mvn -v", "Apache Maven 3", "Java version"),
            step("mvn -B -q -s settings.xml compile && java -cp target/classes A", '"stdout":"42\\n"', timeout=90),
        ],
    },
    {
        "name": "composer",
        "why": "Debian's PHP has its modules by files that its packages hand to ucf; composer does not start without them.",
        "before": "mkdir -p lib/src && printf '%s\\n' '<?php namespace Lib; class X { static function f() { return 6 * 7; } }' > lib/src/X.php && "
        "printf '%s\\n' '{\"name\": \"a/lib\", \"version\": \"1.0.0\", \"autoload\": {\"psr-4\": {\"Lib\\\\\": \"src\"}}}' > lib/composer.json && "
        "printf '%s\\n' '{\"name\": \"a/app\", \"repositories\": [{\"type\": \"path\", \"url\": \"./lib\"}, {\"packagist.org\": false}]}' > composer.json && "
        "printf '%s\\n' '<?php require \"vendor/autoload.php\"; echo Lib\\X::f(), \"\\n\";' > app.php && php -m > modules",
        "steps": [
            step("php -m | diff - modules && echo same", "same", lacks=("denied",)),
            step("composer require -n a/lib && php app.php", "Installing a/lib (1.0.0)", '42\\n"', '"exit_code":0'),
        ],
    },
    {
        "name": "R",
        "steps": [
            step("Rscript -e 'cat(median(c(1, 2, 6)), nrow(installed.packages()) > 10, \"\\n\")'", "2 TRUE", lacks=("Renviron", "Warning")),
            step("Rscript -e 'pdf(\"plot.pdf\"); plot(1:3); invisible(dev.off())' && head -c 4 plot.pdf", '"stdout":"%PDF"'),
        ],
    },
    {
        "name": "worktree",
        "why": "The workspace is a linked worktree: what git needs lies in another directory of the user.",
        "before": "git config --global user.name Me && git config --global user.email me@example.org && git init -q -b main ../main && "
        "git -C ../main commit -q --allow-empty -m first && git -C ../main worktree add -q -b topic ../project && mkdir sub",
        "steps": [
            step("echo x > sub/file && git add sub && git commit -qm second && git log --format=%s && pwd", "second\\nfirst\\n{at}/project"),
            step("git rev-parse --show-prefix", '"stdout":"sub/\\n"', cwd="{at}/project/sub"),
            step("git log -1 --format=%s main", '"stdout":"first\\n"', cwd="/workspace/sub"),
            step("echo '[core] hooksPath = /tmp' >> {at}/main/.git/config", "Read-only file system"),
        ],
    },
    {
        "name": "worktree-added",
        "why": "A worktree next to the workspace has the host's paths, so that the host's git keeps it.",
        "serve": ["--rw", "{at}/near:{at}/near", "--unguarded"],
        "before": "mkdir ../near && git config --global user.name Me && git config --global user.email me@example.org && "
        "git init -q -b main && git commit -q --allow-empty -m first",
        "steps": [
            step("git worktree add -q -b topic {at}/near/tree && cat {at}/near/tree/.git", "gitdir: {at}/project/.git/worktrees/tree"),
            step("cd {at}/near/tree && git commit -q --allow-empty -m second && git worktree prune -v && git -C /workspace log --format=%s topic",
                 '"stdout":"second\\nfirst\\n"'),
        ],
    },
    {
        "name": "cargo-from-a-graphical-client",
        "why": "A client that a desktop starts has no PATH of a shell: the tool chains of the home are found all the same.",
        "rust": True,
        "graphical": True,
        "before": "~/.cargo/bin/cargo init -q --vcs none --name story",
        "steps": [step("cargo run -q --offline", "Hello, world!")],
    },
    {
        "name": "installers-without-a-network",
        "before": "npm init -y > /dev/null",
        "steps": [
            step("npm install is-number", "network", timeout=15),
            step("python3 -m venv /tmp/v && /tmp/v/bin/pip install is-number", "Name or service not known", timeout=15),
        ],
    },
]
