# Makes what the servers give out: packages of each kind, and repositories. $1 is the directory of the test.
at=$1
cd "$at/files"

python3 - <<'END'
import io, json, tarfile, zipfile

for name in ("tiny_lab", "requests"):
    with zipfile.ZipFile(f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "WORD = 'a wheel of the lab'\n")
        at = f"{name}-1.0.dist-info/"
        wheel.writestr(at + "METADATA", f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
        wheel.writestr(at + "WHEEL", "Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(at + "RECORD", f"{name}.py,,\n" + "".join(f"{at}{file},,\n" for file in ("METADATA", "WHEEL", "RECORD")))

for name in ("example.org/tiny", "rsc.io/quote"):
    with zipfile.ZipFile(f"{name.replace('/', '-')}.zip", "w") as module:
        at = f"{name}@v1.0.0/"
        module.writestr(at + "go.mod", f"module {name}\n\ngo 1.19\n")
        module.writestr(at + "word.go", f'package {name.partition("/")[2]}\n\nconst Word = "a module of the lab"\n')

for name in ("tiny-lab", "itoa"):
    with tarfile.open(f"{name}.crate", "w:gz") as crate:
        for file, text in (("Cargo.toml", f'[package]\nname = "{name}"\nversion = "1.0.0"\nedition = "2021"\n'),
                           ("src/lib.rs", 'pub const WORD: &str = "a crate of the lab";\n')):
            member = tarfile.TarInfo(f"{name}-1.0.0/{file}")
            member.size = len(text)
            crate.addfile(member, io.BytesIO(text.encode()))
END

for name in tiny-lab lodash; do
    mkdir -p "npm/$name"
    echo "{\"name\": \"$name\", \"version\": \"1.0.0\", \"main\": \"index.js\"}" >"npm/$name/package.json"
    echo "module.exports = 'a package of the lab'" >"npm/$name/index.js"
done

# A repository of Debian packages, signed.
mkdir -p debian/pool debian/dists/lab/main/binary-all
for name in tiny-lab hello; do
    mkdir -p "$name/DEBIAN" "$name/usr/share/$name"
    printf 'Package: %s\nVersion: 1.0\nArchitecture: all\nMaintainer: lab <lab@example.org>\nDescription: of the lab\n' "$name" >"$name/DEBIAN/control"
    echo 'a package of Debian of the lab' >"$name/usr/share/$name/word"
    deb=debian/pool/${name}_1.0_all.deb
    dpkg-deb --build --root-owner-group "$name" "$deb"
    {
        cat "$name/DEBIAN/control"
        echo "Filename: ${deb#debian/}"
        echo "Size: $(stat -c %s "$deb")"
        echo "SHA256: $(sha256sum "$deb" | cut -d' ' -f1)"
        echo
    } >>debian/dists/lab/main/binary-all/Packages
done
cd debian
cd dists/lab
packages=main/binary-all/Packages
printf 'Suite: lab\nCodename: lab\nArchitectures: all amd64 arm64\nComponents: main\nDate: %s\nSHA256:\n %s %s %s\n' \
    "$(date -Ru)" "$(sha256sum $packages | cut -d' ' -f1)" "$(stat -c %s $packages)" $packages >Release
export GNUPGHOME=$at/gnupg
mkdir -m 700 "$GNUPGHOME"
gpg --batch --quiet --passphrase '' --quick-generate-key lab@example.org ed25519 sign 1d
gpg --batch --quiet --clearsign --output InRelease Release
gpg --batch --quiet --armor --export lab@example.org >"$at/files/debian/key.asc"
gpgconf --kill all

# A public repository that takes pushes, and a private one.
cd "$at/git"
export HOME="$at" GIT_CONFIG_GLOBAL=/dev/null
git init -q -b main work
cd work
echo 'public words' >words
git add words
git -c user.name=lab -c user.email=lab@example.org commit -qm begin
cd ..
mkdir o
git clone -q --bare work o/r.git
git -C o/r.git config http.receivepack true
cd work
echo 'secret plans' >plans
git add plans
git -c user.name=lab -c user.email=lab@example.org commit -qm plans
cd ..
git clone -q --bare work o/private.git
