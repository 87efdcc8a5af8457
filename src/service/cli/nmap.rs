//! The XML of nmap as the fields of the reference implementation (hosts, ports, a summary), and as the report that nmap
//! itself prints for readers (nmap(1), OUTPUT).
//!
//! nmap could print that report too, but only mixed with the XML, which a scanned host could then forge.

use serde_json::{Map, Value, json};

use super::xml::Element;

/// Reads a scan; `None` where the document is not nmap's.
pub(super) fn scan(root: &Element) -> Option<Map<String, Value>> {
    if root.name != "nmaprun" {
        return None;
    }
    let hosts: Vec<Value> = root.all("host").map(host).collect();
    let up = root.all("host").filter(|host| state(host) == Some("up")).count();
    let ports: Vec<Value> = root
        .all("host")
        .flat_map(|host| {
            let address = address(host).unwrap_or_default().to_owned();
            ports(host).map(move |port| with(port, "host", json!(address)))
        })
        .collect();
    let open = ports.iter().filter(|port| port.get("state") == Some(&json!("open"))).count();
    let total = root
        .first("runstats")
        .and_then(|stats| stats.first("hosts"))
        .and_then(|hosts| hosts.attribute("total"))
        .and_then(|total| total.parse::<u64>().ok());
    let mut fields = Map::new();
    fields.insert("hosts_up".to_owned(), json!(up));
    fields.extend(total.map(|total| ("hosts_scanned".to_owned(), json!(total))));
    fields.insert("hosts".to_owned(), Value::Array(hosts));
    fields.insert("summary".to_owned(), json!(summary(up, total, open)));
    fields.insert("ports_found".to_owned(), Value::Array(ports));
    Some(fields)
}

fn summary(up: usize, total: Option<u64>, open: usize) -> String {
    let hosts = match total {
        Some(total) => format!("{up} of {total} hosts up"),
        None => format!("{up} hosts up"),
    };
    format!("{hosts}, {open} open ports")
}

fn host(host: &Element) -> Value {
    let names: Vec<&str> = host
        .all("hostnames")
        .flat_map(|names| names.all("hostname"))
        .filter_map(|name| name.attribute("name"))
        .collect();
    let mut one = Map::new();
    one.extend(address(host).map(|address| ("address".to_owned(), json!(address))));
    one.extend(state(host).map(|state| ("state".to_owned(), json!(state))));
    if !names.is_empty() {
        one.insert("names".to_owned(), json!(names));
    }
    one.insert("ports".to_owned(), Value::Array(ports(host).collect()));
    // Ports that nmap counts and does not list.
    let others: Vec<Value> = host
        .all("ports")
        .flat_map(|ports| ports.all("extraports"))
        .filter_map(|extra| {
            Some(json!({
                "state": extra.attribute("state")?,
                "count": extra.attribute("count")?.parse::<u64>().ok()?,
            }))
        })
        .collect();
    if !others.is_empty() {
        one.insert("other_ports".to_owned(), Value::Array(others));
    }
    Value::Object(one)
}

fn address(host: &Element) -> Option<&str> {
    let is_ip = |one: &&Element| one.attribute("addrtype").is_some_and(|kind| kind != "mac");
    host.all("address").find(is_ip).and_then(|one| one.attribute("addr"))
}

fn state(host: &Element) -> Option<&str> {
    host.first("status").and_then(|status| status.attribute("state"))
}

fn ports(host: &Element) -> impl Iterator<Item = Value> + '_ {
    host.all("ports").flat_map(|ports| ports.all("port")).filter_map(port)
}

fn port(port: &Element) -> Option<Value> {
    let number: u16 = port.attribute("portid")?.parse().ok()?;
    let state = port.first("state")?.attribute("state")?;
    let service = port.first("service");
    let of_service = |name: &str| service.and_then(|service| service.attribute(name));
    let mut one = Map::new();
    one.insert("port".to_owned(), json!(number));
    one.insert("protocol".to_owned(), json!(port.attribute("protocol")?));
    one.insert("state".to_owned(), json!(state));
    for name in ["name", "product", "version"] {
        let key = if name == "name" { "service" } else { name };
        one.extend(of_service(name).map(|value| (key.to_owned(), json!(value))));
    }
    Some(Value::Object(one))
}

/// Formats a scan as nmap prints it for readers. A text of a scanned host stays in its line.
pub(super) fn report(root: &Element) -> String {
    let of_scan = |name: &str| line(root.attribute(name).unwrap_or_default());
    let mut text = format!(
        "# Nmap {} scan initiated {} as: {}\n",
        of_scan("version"),
        of_scan("startstr"),
        of_scan("args")
    );
    let shows_reasons = of_scan("args").split(' ').any(|word| word == "--reason");
    for host in root.all("host").filter(|host| state(host) == Some("up")) {
        add_host(&mut text, host, shows_reasons);
    }
    let end = root.first("runstats").and_then(|stats| stats.first("finished"));
    let end = end.and_then(|end| end.attribute("summary")).unwrap_or_default();
    text.push_str(&format!("# {}\n", line(end).replacen("; ", " -- ", 1)));
    text
}

fn add_host(text: &mut String, host: &Element, shows_reasons: bool) {
    let address = line(address(host).unwrap_or_default());
    let mut names = host.all("hostnames").flat_map(|names| names.all("hostname"));
    let shown = match names.find_map(|name| name.attribute("name")) {
        Some(name) => format!("{} ({address})", line(name)),
        None => address,
    };
    let latency = host
        .first("times")
        .and_then(|times| times.attribute("srtt"))
        .and_then(|micros| micros.parse::<u32>().ok())
        .map_or_else(String::new, |micros| format!(" ({}s latency)", seconds(micros)));
    text.push_str(&format!("Nmap scan report for {shown}\nHost is up{latency}.\n"));
    let all: Vec<&Element> = host.all("ports").flat_map(|ports| ports.all("port")).collect();
    let hidden = hidden_ports(host);
    if !hidden.is_empty() {
        text.push_str(&format!("Not shown: {}\n", hidden.join(", ")));
    }
    let rows: Vec<[String; 5]> = all.iter().filter_map(|port| row(port)).collect();
    add_table(text, &all, &rows, shows_reasons);
    let scripts: Vec<&Element> =
        host.all("hostscript").flat_map(|scripts| scripts.all("script")).collect();
    if !scripts.is_empty() {
        text.push_str("\nHost script results:\n");
        add_scripts(text, &scripts);
    }
    text.push('\n');
}

/// Returns the ports that nmap counts and does not list: `98 closed tcp ports (conn-refused)`.
fn hidden_ports(host: &Element) -> Vec<String> {
    let extra = host.all("ports").flat_map(|ports| ports.all("extraports"));
    let shown = extra.filter_map(|extra| {
        let state = extra.attribute("state")?;
        let reasons = extra.all("extrareasons").map(|one| {
            let value = |name: &str| line(one.attribute(name).unwrap_or_default());
            let count = value("count");
            format!("{count} {} {} ports ({})", line(state), value("proto"), value("reason"))
        });
        Some(reasons.collect::<Vec<_>>().join(", "))
    });
    shown.filter(|text| !text.is_empty()).collect()
}

/// Returns the columns of a port: number, state, service, reason, version.
fn row(port: &Element) -> Option<[String; 5]> {
    let state = port.first("state")?;
    let service = port.first("service");
    let of_service =
        |name: &str| service.and_then(|one| one.attribute(name)).map(line).unwrap_or_default();
    let encrypted = if of_service("tunnel") == "ssl" { "ssl/" } else { "" };
    let name = match of_service("name").as_str() {
        "" => "unknown".to_owned(),
        name => format!("{encrypted}{name}"),
    };
    let extra = Some(of_service("extrainfo")).filter(|extra| !extra.is_empty());
    let version = [of_service("product"), of_service("version")]
        .into_iter()
        .chain(extra.map(|extra| format!("({extra})")))
        .filter(|part| !part.is_empty());
    Some([
        format!("{}/{}", line(port.attribute("portid")?), line(port.attribute("protocol")?)),
        line(state.attribute("state")?),
        name,
        line(state.attribute("reason").unwrap_or_default()),
        version.collect::<Vec<_>>().join(" "),
    ])
}

fn add_table(text: &mut String, ports: &[&Element], rows: &[[String; 5]], shows_reasons: bool) {
    let shows_versions = rows.iter().any(|[.., version]| !version.is_empty());
    let is_shown = |at: usize| match at {
        3 => shows_reasons,
        4 => shows_versions,
        _ => true,
    };
    let titles = ["PORT", "STATE", "SERVICE", "REASON", "VERSION"].map(str::to_owned);
    let width = |at: usize| {
        let cells = rows.iter().chain([&titles]).filter_map(|row| row.get(at));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let written = |row: &[String; 5]| {
        let cells = row.iter().zip(&widths).enumerate().filter(|(at, _)| is_shown(*at));
        let cells: Vec<String> =
            cells.map(|(_, (cell, width))| format!("{cell:<width$}")).collect();
        format!("{}\n", cells.join(" ").trim_end())
    };
    if rows.is_empty() {
        return;
    }
    text.push_str(&format!("\n{}", written(&titles)));
    for (port, row) in ports.iter().filter(|port| self::row(port).is_some()).zip(rows) {
        text.push_str(&written(row));
        add_scripts(text, &port.all("script").collect::<Vec<_>>());
    }
}

/// Adds what scripts found: each line behind `| `, the last one of a script behind `|_`.
fn add_scripts(text: &mut String, scripts: &[&Element]) {
    for script in scripts {
        let value = |name: &str| script.attribute(name).unwrap_or_default();
        let output = format!("{}: {}", value("id"), value("output"));
        let lines: Vec<String> = output.lines().map(line).collect();
        let (last, before) = lines.split_last().map_or(("", &[][..]), |(last, all)| (last, all));
        before.iter().for_each(|one| text.push_str(&format!("| {one}\n")));
        text.push_str(&format!("|_{last}\n"));
    }
}

/// Returns a text in one line: a control character becomes a question mark.
fn line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Formats a time as nmap does: in seconds, with two significant digits.
fn seconds(micros: u32) -> String {
    let places = match micros {
        0..=99 => 6,
        100..=999 => 5,
        1_000..=9_999 => 4,
        10_000..=99_999 => 3,
        100_000..=999_999 => 2,
        _ => 1,
    };
    format!("{:.places$}", f64::from(micros) / 1e6)
}

fn with(mut value: Value, key: &str, field: Value) -> Value {
    if let Some(map) = value.as_object_mut() {
        map.insert(key.to_owned(), field);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::super::output::parse;
    use config::policy::conduct::OutputForm;
    use serde_json::{Value, json};

    /// What nmap 7.93 prints for two hosts, shortened.
    const SCAN: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE nmaprun>
<?xml-stylesheet href="file:///usr/share/nmap/nmap.xsl" type="text/xsl"?>
<nmaprun scanner="nmap" args="nmap -oX - -sT 10.9.0.2"><scaninfo type="connect" protocol="tcp"/>
<host starttime="1"><status state="up" reason="syn-ack"/><address addr="02:00:00:00:00:01" addrtype="mac"/>
<address addr="10.9.0.2" addrtype="ipv4"/><hostnames><hostname name="web.lab.internal" type="PTR"/></hostnames>
<ports><extraports state="closed" count="98"/><port protocol="tcp" portid="80"><state state="open"/>
<service name="http" product="nginx" version="1.22"/></port><port protocol="tcp" portid="81"><state state="filtered"/></port>
<port protocol="tcp" portid="99999"><state state="open"/></port></ports></host>
<host><status state="down"/><address addr="10.9.0.3" addrtype="ipv4"/></host>
<runstats><hosts up="1" down="1" total="2"/></runstats></nmaprun>"#;

    /// Two ports and a script of a host that wants more ports to be believed.
    const HOSTILE: &str = "<nmaprun version='7.93' startstr='now' args='nmap --reason'><host>\
        <status state='up'/><address addr='10.9.0.2' addrtype='ipv4'/>\
        <hostnames><hostname name='a&#10;22/tcp open ssh'/></hostnames>\
        <ports><port protocol='tcp' portid='80'><state state='open' reason='syn-ack'/>\
        <service name='http' product='x&#10;23/tcp open telnet' extrainfo='y&#27;[2J' tunnel='ssl'/>\
        <script id='http-title' output='&#10;  a&#10;24/tcp open b'/></port></ports>\
        <times srtt='310'/></host><runstats><finished summary='Nmap done at now; 1 up'/></runstats></nmaprun>";

    fn readable(xml: &str) -> Option<String> {
        parse(OutputForm::Nmap, xml)?.ok()?.readable
    }

    #[test]
    fn a_scan_is_readable_as_nmap_prints_it() {
        let expected = "# Nmap  scan initiated  as: nmap -oX - -sT 10.9.0.2
Nmap scan report for web.lab.internal (10.9.0.2)
Host is up.

PORT      STATE    SERVICE VERSION
80/tcp    open     http    nginx 1.22
81/tcp    filtered unknown
99999/tcp open     unknown

#\x20
";
        assert_eq!(readable(SCAN).as_deref(), Some(expected));
    }

    #[test]
    fn a_scanned_host_cannot_add_lines_to_the_report() {
        let report = readable(HOSTILE).unwrap_or_default();
        let expected = "# Nmap 7.93 scan initiated now as: nmap --reason
Nmap scan report for a?22/tcp open ssh (10.9.0.2)
Host is up (0.00031s latency).

PORT   STATE SERVICE  REASON  VERSION
80/tcp open  ssl/http syn-ack x?23/tcp open telnet (y?[2J)
| http-title:\x20
|   a
|_24/tcp open b

# Nmap done at now -- 1 up
";
        assert_eq!(report, expected);
    }

    #[test]
    fn a_scan_is_hosts_ports_and_a_summary() {
        let parsed = parse(OutputForm::Nmap, SCAN).expect("it has output").expect("it is nmap's");
        let web = json!({ "port": 80, "protocol": "tcp", "state": "open", "service": "http",
            "product": "nginx", "version": "1.22" });
        let other = json!({ "port": 81, "protocol": "tcp", "state": "filtered" });
        let found = |port: &Value| super::with(port.clone(), "host", json!("10.9.0.2"));
        let expected = json!({
            "hosts_up": 1, "hosts_scanned": 2, "summary": "1 of 2 hosts up, 1 open ports",
            "ports_found": [found(&web), found(&other)],
            "hosts": [
                { "address": "10.9.0.2", "state": "up", "names": ["web.lab.internal"],
                  "ports": [web, other], "other_ports": [{ "state": "closed", "count": 98 }] },
                { "address": "10.9.0.3", "state": "down", "ports": [] }
            ]
        });
        assert_eq!(Value::Object(parsed.fields), expected);
    }
}
