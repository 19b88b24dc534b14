// The `openai` npm client in every call that the server documents, streaming and not. Prints what it
// got as one JSON object. Arguments: the client's module, the generating server, the embedding one.
const [module, generating, embedding] = process.argv.slice(2);
const { default: OpenAI } = await import(module);
const client = (url) => new OpenAI({ baseURL: `${url}/v1`, apiKey: "-", maxRetries: 0 });
const openai = client(generating);
const got = {};

const common = { model: "tiny", seed: 7, temperature: 1 };
const messages = [{ role: "user", content: "Count to three." }];

got.models = [];
for await (const model of openai.models.list()) got.models.push(model.id);
got.model = (await openai.models.retrieve("tiny")).id;

const chat = { ...common, messages, max_tokens: 30, logprobs: true, top_logprobs: 2 };
const whole = await openai.chat.completions.create(chat);
const stream = openai.chat.completions.stream({ ...chat, stream_options: { include_usage: true } });
let deltas = "";
stream.on("content", (delta) => (deltas += delta));
const final = await stream.finalChatCompletion();
got.chat = {
  whole: whole.choices[0].message.content,
  deltas,
  final: final.choices[0].message.content,
  usages: [whole.usage.completion_tokens, final.usage.completion_tokens],
  finish: [whole.choices[0].finish_reason, final.choices[0].finish_reason],
  logprobs: [whole, final].map((each) => each.choices[0].logprobs.content.length),
};

const completion = { ...common, prompt: ["One, two,", "Three"], max_tokens: 10, n: 2 };
const completed = await openai.completions.create(completion);
const texts = ["", "", "", ""];
for await (const chunk of await openai.completions.create({ ...completion, stream: true }))
  for (const choice of chunk.choices) texts[choice.index] += choice.text;
got.completions = { whole: completed.choices.map((choice) => choice.text), streamed: texts };

const asked = { model: "tiny", input: "Go.", instructions: "Be brief.", max_output_tokens: 20 };
const response = await openai.responses.create({ ...asked, temperature: 1, seed: 7 });
const events = openai.responses.stream({ ...asked, temperature: 1, seed: 7 });
const kinds = new Set();
for await (const event of events) kinds.add(event.type);
got.responses = {
  whole: response.output_text,
  streamed: (await events.finalResponse()).output_text,
  kinds: [...kinds].sort(),
};

const parameters = {
  type: "object",
  properties: { unit: { enum: ["celsius", "kelvin"] }, days: { type: "integer", minimum: 0, maximum: 9 } },
  required: ["unit", "days"],
  additionalProperties: false,
};
const functions = ["weather", "forecast"].map((name) => ({
  type: "function",
  function: { name, parameters, strict: true },
}));
const calls = (message) => message.tool_calls.map((call) => [call.function.name, call.function.arguments]);
const forced = { ...common, messages, tools: functions, tool_choice: "required", max_tokens: 200, parallel_tool_calls: false };
const named = { ...forced, tool_choice: { type: "function", function: { name: "forecast" } } };
const required = await openai.chat.completions.create(forced);
got.tools = {
  finish: required.choices[0].finish_reason,
  required: calls(required.choices[0].message),
  streamed: calls((await openai.chat.completions.stream(forced).finalChatCompletion()).choices[0].message),
  named: calls((await openai.chat.completions.create(named)).choices[0].message),
};
// The client runs the tools itself and sends what came of them, until the model stops calling.
const seen = [];
const run = (argument) => (seen.push(argument), "Fine.");
const runner = openai.chat.completions.runTools(
  {
    ...common,
    messages,
    max_tokens: 200,
    tool_choice: { type: "function", function: { name: "weather" } },
    tools: [{ type: "function", function: { name: "weather", parameters, parse: JSON.parse, function: run } }],
  },
  { maxChatCompletions: 2 },
);
await runner.done();
got.tools.ran = seen;

const schema = { type: "object", properties: { a: { type: "boolean" } }, required: ["a"] };
const format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema } };
const parsed = await openai.chat.completions.parse({ ...common, messages, response_format: format });
got.parsed = parsed.choices[0].message.parsed;

const vectors = { model: "tiny", input: ["a", "b"] };
const packed = await client(embedding).embeddings.create(vectors);
const plain = await client(embedding).embeddings.create({ ...vectors, encoding_format: "float" });
got.embeddings = [packed, plain].map((answer) => answer.data.map((each) => each.embedding));

got.errors = [];
for (const call of [
  () => openai.models.retrieve("gpt"),
  () => openai.chat.completions.create({ ...common, messages: [] }),
  () => openai.completions.create({ ...common, prompt: "x", max_tokens: 1_000_000 }),
  () => openai.embeddings.create({ model: "tiny", input: "x" }),
])
  try {
    await call();
  } catch (error) {
    got.errors.push([error.constructor.name, error.status, error.code, error.param]);
  }

console.log(JSON.stringify(got));
