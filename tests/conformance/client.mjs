// Speaks to a server by the official client for TypeScript: client.mjs URL TOKEN auto|legacy
import assert from 'node:assert/strict';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

const [url, token, mode] = process.argv.slice(2);

function client(headers) {
	const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } });
	const client = new Client({ name: 'test', version: '1' }, { versionNegotiation: { mode } });
	return [client, transport];
}

const [own, transport] = client({ authorization: `Bearer ${token}` });
await own.connect(transport);
const { tools } = await own.listTools();
const names = tools.map((tool) => tool.name);
assert(names.includes('bash') && names.includes('calculate'), names.join());
for (let number = 0; number < 3; number++) {
	const done = await own.callTool({ name: 'bash', arguments: { command: `y=$((y+1)); echo $y-${number}` } });
	assert.equal(done.structuredContent.stdout, `${number + 1}-${number}\n`, JSON.stringify(done));
}
const sums = [...Array(20).keys()].map((n) => own.callTool({ name: 'calculate', arguments: { expression: `${n}*7` } }));
(await Promise.all(sums)).forEach((done, n) => assert.equal(done.structuredContent.result, String(n * 7)));
const bad = await own.callTool({ name: 'bash', arguments: { comand: 'true' } });
assert(bad.isError, JSON.stringify(bad));
console.log(`typescript ${mode}: ${transport.protocolVersion}`);
await own.close();

const [stranger, without] = client({});
await assert.rejects(async () => {
	await stranger.connect(without);
	await stranger.listTools();
});
process.exit(0);
