# Filters of jq(1) that the interpreter lacks or implements differently.
def tostring: text_of;
def tojson: json_of;
def @text: text_of;
def @json: json_of;
def join($s): if length == 0 then "" else (.[0] | if . == null then "" else text_of end) as $first
    | reduce .[1:][] as $x ($first; . + $s + ($x | if . == null then "" else text_of end)) end;
def from_entries: reduce .[] as $x ({};
    ($x | if isobject then (if has("key") then .key elif has("k") then .k elif has("name") then .name
        elif has("Name") then .Name elif has("Key") then .Key else .K end) else . end) as $k
    | . + { ($k | if isstring then . else text_of end):
        ($x | if has("value") then .value elif has("v") then .v elif has("Value") then .Value else .V end) });
def with_entries(f): to_entries | map(f) | from_entries;
def leaf_paths: paths(scalars);
def @csv: map(if isstring then "\"" + gsub("\""; "\"\"") + "\"" elif . == null then ""
    elif isnumber or isboolean then text_of else error("\(type) (\(json_of)) is not valid in a csv row") end) | join(",");
def @tsv: map(if isstring then gsub("\\\\"; "\\\\") | gsub("\t"; "\\t") | gsub("\n"; "\\n") | gsub("\r"; "\\r")
    elif . == null then "" elif isnumber or isboolean then text_of
    else error("\(type) (\(json_of)) is not valid in a tsv row") end) | join("\t");
def @sh: [if isarray then .[] end | if isstring then "'" + gsub("'"; "'\\''") + "'"
    elif isarray or isobject then error("\(type) (\(json_of)) can not be escaped for shell") else text_of end] | join(" ");
def ascii: [.] | implode;
def IN(s): any(s == .; .);
def IN(src; s): any(src == s; .);
def INDEX(stream; f): reduce stream as $row ({}; .[$row | f | text_of] = $row);
def INDEX(f): INDEX(.[]; f);
def GROUP_BY(f): group_by(f);
def isvalid(f): try (f | true) catch false;
def todate(f): strftime(f);
def toarray: if isarray then . else [.] end;
def input_line_number: 0;
def tostream: path(def r: (.[]? | r), .; r) as $p | getpath($p)
    | reduce path(.[]?) as $q ([$p, .]; [$p + $q]);
def fromstream(f): { x: null, e: false } as $init
    | foreach f as $i ($init;
        if .e then $init else . end
        | if $i | length == 2 then setpath(["e"]; $i[0] | length == 0) | setpath(["x"] + $i[0]; $i[1])
          else setpath(["e"]; $i[0] | length == 1) end;
        if .e then .x else empty end);
def truncate_stream(stream): . as $n | null | stream | . as $input
    | if (.[0] | length) > $n then setpath([0]; .[0][$n:]) else empty end;
def input_filename: "<stdin>";
def divide(l; r): r as $right | l as $left | divided($left; $right);
def setpath($path; $value): set_path($path; $value);
def delpaths($paths): delete_paths($paths);
def del(f): delete_paths([path(f)]);
def assign_paths(p; v): v as $value | reduce path(p) as $path (.; set_path($path; $value));
def update_slowly(p; f): reduce path(p) as $path ([., []];
    .[0] as $all | [limit(1; $all | getpath($path) | f)] as $new
    | if $new == [] then [$all, .[1] + [$path]] else [($all | set_path($path; $new[0])), .[1]] end)
    | .[1] as $gone | .[0] | delete_paths($gone);
# The interpreter's update is faster, but fails for missing values; then the slow one creates them.
def update_paths(p; f): . as $all | try (p |= first(f)) catch ($all | update_slowly(p; f));
def fromjson: value_of;
def halt_error($code): halt_text($code) | halt($code);
def halt_error: halt_error(5);
