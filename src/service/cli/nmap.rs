//! The XML of nmap as the fields of the reference implementation: hosts, ports, a summary (nmap(1), OUTPUT).

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
