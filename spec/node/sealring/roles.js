/** Who may send what (section 10): a valid key is no licence. */

export const PURPOSE = Object.freeze({ CONTROL: 1, STEP: 2, TUNNEL: 3, WEIGHTS: 4, API: 5 });

const ANYONE = ["PING", "PONG", "CLOSE"];
const MEMBERS = [...ANYONE, "CANDIDACY", "VOTE", "NO_VOTE"];

/** @type {Readonly<Record<string, readonly string[]>>} */
const MAY_SEND = Object.freeze({
  HEAD_TO_RANK: [...MEMBERS, "BOOTSTRAP", "STEP", "ROW", "WAITING", "ADDRESSES", "RENEW"],
  RANK_TO_HEAD: [...MEMBERS, "HELLO", "PREPARED", "READY", "CANNOT_SERVE", "STEP_DONE", "CHECKED", "ADDRESSES", "RENEWED"],
  RANK_TO_RANK: MEMBERS,
  TO_NEXT: [...ANYONE, "STEP"],
  LAST_TO_HEAD: [...ANYONE, "STEP_DONE"],
  NEIGHBOUR: [...ANYONE, "TUNNEL"],
  API_OF_HEAD: [...ANYONE, "REPLY", "BODY", "CREDIT", "DROP"],
  API_OF_RANK: [...ANYONE, "ASK", "BODY", "CREDIT", "DROP"],
  ASKER_OR_HOLDER: [...ANYONE, "GET", "PIECE"],
  PEER: ANYONE,
});

/**
 * What the sender is to the receiver.
 *
 * @param {number} purpose
 * @param {number} sender rank
 * @param {number} receiver rank
 * @param {number} world the number of ranks
 */
function role(purpose, sender, receiver, world) {
  if (purpose === PURPOSE.CONTROL && sender === 0 && receiver > 0) return "HEAD_TO_RANK";
  if (purpose === PURPOSE.CONTROL && receiver === 0 && sender > 0) return "RANK_TO_HEAD";
  const areTwo = sender !== receiver && Math.max(sender, receiver) < world;
  if (purpose === PURPOSE.CONTROL && areTwo) return "RANK_TO_RANK";
  if (purpose === PURPOSE.API && areTwo && sender === 0) return "API_OF_HEAD";
  if (purpose === PURPOSE.API && areTwo && receiver === 0) return "API_OF_RANK";
  if (purpose === PURPOSE.STEP && areTwo && receiver > sender) return "TO_NEXT";
  if (purpose === PURPOSE.STEP && areTwo && receiver === 0) return "LAST_TO_HEAD";
  if (purpose === PURPOSE.TUNNEL && areTwo) return "NEIGHBOUR";
  if (purpose === PURPOSE.WEIGHTS) return "ASKER_OR_HOLDER";
  return "PEER";
}

/**
 * The names of the messages that the sender may send.
 *
 * @param {number} purpose
 * @param {number} sender rank
 * @param {number} receiver rank
 * @param {number} world the number of ranks
 */
export const maySend = (purpose, sender, receiver, world) => MAY_SEND[role(purpose, sender, receiver, world)];
