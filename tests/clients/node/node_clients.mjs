// npm's `openai`, and Vercel's `ai` with @ai-sdk/openai over /v1/responses, its default.
import assert from "node:assert";
import OpenAI from "openai";
import { createOpenAI } from "@ai-sdk/openai";
import { generateObject, generateText, streamText } from "ai";
import { z } from "zod";

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "x", maxRetries: 0 });
const body = { model, messages: [{ role: "user", content: "Say hello." }], max_tokens: 24, temperature: 0 };
const whole = (await client.chat.completions.create(body)).choices[0].message.content;
let text = "";
for await (const chunk of await client.chat.completions.create({ ...body, stream: true }))
  text += chunk.choices[0]?.delta?.content ?? "";
assert.equal(text, whole);
const response = await client.responses.create({ model, input: "Say hello.", temperature: 0 });
assert.equal(response.status, "completed");

const provider = createOpenAI({ baseURL: `${url}/v1`, apiKey: "x" });
const options = { model: provider(model), prompt: "Say hello.", maxOutputTokens: 48, temperature: 0, maxRetries: 0 };
const generated = await generateText(options);
let streamed = "";
for await (const part of streamText(options).textStream) streamed += part;
assert.equal(streamed, generated.text);
const { object } = await generateObject({ ...options, schema: z.object({ yes: z.boolean() }) });
assert.equal(typeof object.yes, "boolean");
