/**
 * Answers the questions of `python -m sealring_protocol.conformance --ask`, one line of JSON each:
 * `... --ask | node answer.js | python -m sealring_protocol.conformance --answers -`.
 */

import { createInterface } from "node:readline";

import { answerVector } from "./vectors.js";

for await (const line of createInterface({ input: process.stdin })) {
  const vector = JSON.parse(line);
  console.log(JSON.stringify({ id: vector.id, ...answerVector(vector) }));
}
