/** Answers of models as they come: server-sent events of OpenAI's API. */

import { createParser } from "eventsource-parser";

export interface Message {
  role: "system" | "user" | "assistant";
  content: string;
}

/** The data of each event of a stream. */
export async function* serverSentData(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.pipeThrough(new TextDecoderStream() as unknown as TransformStream<Uint8Array, string>).getReader();
  const found: string[] = [];
  const parser = createParser({ onEvent: ({ data }) => found.push(data) });
  try {
    for (;;) {
      const { done, value } = await reader.read();
      // Some servers do not end the last event.
      parser.feed(value ?? "\n\n");
      yield* found.splice(0);
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

/** What one event adds to the answer. */
export function chatDelta(data: string): string {
  if (data === "" || data === "[DONE]") return "";
  try {
    const event = JSON.parse(data) as { choices?: { delta?: { content?: string | null } }[]; error?: { message?: string } };
    if (event.error) throw new Error(event.error.message ?? "The model failed.");
    return event.choices?.[0]?.delta?.content ?? "";
  } catch (error) {
    if (error instanceof SyntaxError) return "";
    throw error;
  }
}
