import { type ErrorCode, type ErrorFacts, XceError } from '../base/errors.ts';

/** A pure rule said no. Nothing was changed for it; the code is a row of ERRORS, the message one line. */
export type Refusal = {
  readonly ok: false;
  readonly code: ErrorCode;
  readonly message: string;
  readonly facts: ErrorFacts;
};

export type Verdict<Value> = { readonly ok: true; readonly value: Value } | Refusal;

export const accept = <Value>(value: Value): Verdict<Value> => ({ ok: true, value });

export const refuse = (code: ErrorCode, message: string, facts: ErrorFacts = {}): Refusal => ({
  ok: false,
  code,
  message,
  facts,
});

/** Turns a refusal into the error that callers outside pure code see; `defaults` fill the facts it left open. */
export const unwrap = <Value>(verdict: Verdict<Value>, defaults: ErrorFacts = {}): Value => {
  if (verdict.ok) return verdict.value;
  throw new XceError(verdict.code, verdict.message, { ...defaults, ...verdict.facts });
};
