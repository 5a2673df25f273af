/**
 * Failures (section 12). Whatever a peer does wrong is a `Failure`, and its class is the name of a close code. Any
 * other error that leaves this package is a fault of the package.
 */

/** @typedef {keyof typeof CLOSE} FailureClass */

export const CLOSE = Object.freeze({
  SHUTDOWN: 0,
  PROTOCOL_ERROR: 1,
  LIMIT_EXCEEDED: 2,
  AUTHENTICATION_FAILED: 3,
  DUPLICATE_LINK: 4,
  ROSTER_CONFLICT: 5,
  MODEL_MISMATCH: 6,
  ROLE_VIOLATION: 7,
  ROSTER_EXPIRED: 8,
  TIMEOUT: 9,
  POLICY_MISMATCH: 10,
  VERSION_MISMATCH: 15,
  REPLACED: 11,
  INTERNAL_ERROR: 12,
  NOT_READY: 13,
  REFUSED: 14,
});

export class Failure extends Error {
  /**
   * @param {FailureClass} failureClass
   * @param {string} reason what is wrong, for the reader of a log
   */
  constructor(failureClass, reason) {
    super(reason);
    this.name = failureClass;
  }

  /** The number that CLOSE tells the peer. */
  get code() {
    return CLOSE[/** @type {FailureClass} */ (this.name)];
  }
}

/** The reasons of the checks that `without` leaves out. @type {ReadonlySet<string>} */
let leftOut = new Set();

/**
 * Act without the checks that give one of `reasons`, to see what else refuses a faulty input.
 *
 * @template T
 * @param {Iterable<string>} reasons
 * @param {() => T} act
 * @returns {T}
 */
export function without(reasons, act) {
  leftOut = new Set(reasons);
  try {
    return act();
  } finally {
    leftOut = new Set();
  }
}

/**
 * Go on only if `holds`.
 *
 * @param {unknown} holds
 * @param {string} reason what is wrong if it does not hold
 * @param {FailureClass} failureClass
 * @returns {asserts holds}
 */
export function must(holds, reason, failureClass = "PROTOCOL_ERROR") {
  if (!holds && !leftOut.has(reason)) throw new Failure(failureClass, reason);
}
