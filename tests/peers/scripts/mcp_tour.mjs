// The same as mcp_tour.py, with the client of the TypeScript SDK.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const { url, by_handshake } = JSON.parse(process.argv[2]);
const found = { steps: [] };

async function at(address, use) {
  const client = new Client({ name: "test", version: "1" });
  const transport = new StreamableHTTPClientTransport(new URL(address));
  await client.connect(transport);
  found.version = transport.protocolVersion;
  await use(client);
  await transport.terminateSession();
  await client.close();
}

async function seen(client, name, args = {}) {
  const more = name === "rest" ? { onprogress: (one) => found.steps.push(one.progress) } : {};
  try {
    const result = await client.callTool({ name, arguments: args }, undefined, more);
    const texts = result.content.map((block) => block.text ?? block.type);
    return { error: Boolean(result.isError), texts: texts.map((text) => (text.length < 1000 ? text : text.length)) };
  } catch (error) {
    return { raised: error.constructor.name, code: error.code ?? null, data: error.data ?? null };
  }
}

await at(url, async (client) => {
  found.instructions = client.getInstructions();
  found.tools = (await client.listTools()).tools.map((tool) => tool.name);
  found.prompt = (await client.getPrompt({ name: "task" })).messages.map((message) => message.content.type);
  found.add = await seen(client, "add", { a: 1, b: 2 });
  found.look = await seen(client, "look");
  found.fail = await seen(client, "fail");
  found.wrong = await seen(client, "add", { a: 1 });
  found.boom = await seen(client, "boom");
  found.nope = await seen(client, "nope");
  found.lose = await seen(client, "lose");
  found.again = await seen(client, "add", { a: 2, b: 2 });
  found.large = await seen(client, "large", { size: 2000000 });
  found.rest = await seen(client, "rest", { seconds: 0.7 });
  found.guess = await seen(client, "guess", { number: 7 });
  found.late = await seen(client, "guess", { number: 8 });
});
await at(by_handshake, async (client) => {
  found.notes = [];
  for (const text of "ab") found.notes.push(await seen(client, "note", { text }));
});
console.log(JSON.stringify(found));
