//! Reads the host's resolvers and its table of names (resolv.conf(5), hosts(5)).

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// Maximum number of resolvers, as in the C library.
const MAX_RESOLVERS: usize = 3;
/// Maximum number of bytes read of a file.
const MAX_BYTES: u64 = 1 << 20;

/// Returns the resolvers listed in a file in the form of resolv.conf(5); empty if it cannot be
/// read.
pub fn resolvers(path: &Path) -> Vec<SocketAddr> {
    let text = text(path);
    let addresses = lines(&text).filter_map(|mut words| match words.next() {
        Some("nameserver") => words.next()?.parse::<IpAddr>().ok(),
        Some(_) | None => None,
    });
    addresses.take(MAX_RESOLVERS).map(|address| SocketAddr::new(address, 53)).collect()
}

/// Returns the names in a file in the form of hosts(5), in lower case, with their addresses.
pub fn hosts(path: &Path) -> Vec<(String, IpAddr)> {
    let text = text(path);
    let mut names = Vec::new();
    for mut words in lines(&text) {
        let Some(Ok(address)) = words.next().map(str::parse::<IpAddr>) else { continue };
        names.extend(words.map(|name| (name.to_ascii_lowercase(), address)));
    }
    names
}

fn text(path: &Path) -> String {
    use std::io::Read;
    let mut text = String::new();
    // A host may lack the file: it then adds no names.
    let read =
        std::fs::File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text));
    if read.is_ok() { text } else { String::new() }
}

/// Splits a text into the words of each line, without comments.
fn lines(text: &str) -> impl Iterator<Item = impl Iterator<Item = &str>> {
    text.lines().map(|line| line.split(['#', ';']).next().unwrap_or_default().split_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        use std::io::Write;
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(text.as_bytes()).expect("written");
        file
    }

    #[test]
    fn resolvers_are_the_first_three_addresses() {
        let file = file(
            "# local\nnameserver 192.0.2.1\nsearch a.org\nnameserver fd12::1 # six\nnameserver x\n\
             nameserver 192.0.2.2\nnameserver 192.0.2.3\n",
        );
        let addresses: Vec<String> =
            resolvers(file.path()).iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["192.0.2.1:53", "[fd12::1]:53", "192.0.2.2:53"]);
        assert_eq!(resolvers(Path::new("/nonexistent")), []);
    }

    #[test]
    fn names_of_the_host_are_lower_case() {
        let file = file("127.0.0.1 localhost\n10.1.2.3\tDB.corp db # the database\nx y\n");
        let hosts = hosts(file.path());
        let names: Vec<&str> = hosts.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["localhost", "db.corp", "db"]);
    }
}
