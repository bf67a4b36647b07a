/**
 * JSON documents of the protocol: bytes to checked values and back. Whatever the bytes are, the outcome is a
 * value of the schema or an XceError 'protocol' or 'too-large'.
 */
import * as v from 'valibot';
import { type ErrorCode, XceError } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import { LIMITS } from '../base/limits.ts';
import {
  MESSAGES,
  OVER_LIMIT,
  type RequestOf,
  type ResponseOf,
  STREAM,
  STREAMS,
  StreamCommand,
  StreamEvent,
  type StreamVerb,
  type UnaryVerb,
  type Verb,
  WireError,
} from './message.ts';

const utf8 = new TextDecoder('utf-8', { fatal: true });

const TEXT_CHARS_MAX = 4096;

const quoted = (text: string): string => escapeText(text.slice(0, 200));

/**
 * Text of an error from elsewhere. Its maker escaped what it quotes; what is hidden nevertheless is escaped here,
 * and backslashes stay as they are.
 */
const received = (text: string): string => text.split('\\').map(escapeText).join('\\');

const parseDocument = (bytes: Uint8Array, what: string): unknown => {
  try {
    return JSON.parse(utf8.decode(bytes));
  } catch (error) {
    throw new XceError('protocol', `${what} is not a JSON document in UTF-8`, { cause: error });
  }
};

const decodeWith = <S extends v.GenericSchema>(
  schema: S,
  bytes: Uint8Array,
  what: string,
): v.InferOutput<S> => {
  const result = v.safeParse(schema, parseDocument(bytes, what), { abortEarly: true, abortPipeEarly: true });
  if (result.success) return result.output;
  const issue = result.issues[0];
  const path = v.getDotPath(issue);
  const code: ErrorCode =
    issue.type === 'max_length' || issue.message === OVER_LIMIT ? 'too-large' : 'protocol';
  throw new XceError(code, `${what}: ${path === null ? '' : `${quoted(path)}: `}${quoted(issue.message)}`);
};

const decodeBounded = <S extends v.GenericSchema>(
  schema: S,
  bytes: Uint8Array,
  what: string,
  bytesMax: number,
): v.InferOutput<S> => {
  if (bytes.length > bytesMax) throw new XceError('too-large', `${what} is over ${bytesMax} bytes`);
  return decodeWith(schema, bytes, what);
};

export const isUnaryVerb = (verb: string): verb is UnaryVerb => Object.hasOwn(MESSAGES, verb);
export const isStreamVerb = (verb: string): verb is StreamVerb => Object.hasOwn(STREAMS, verb);

/** The body of a unary request, or the head of a stream. */
export const decodeRequest = <V extends Verb>(verb: V, bytes: Uint8Array): RequestOf<V> => {
  const schema = isUnaryVerb(verb) ? MESSAGES[verb].request : STREAMS[verb as StreamVerb];
  return decodeBounded(schema, bytes, `the request ${verb}`, LIMITS.messageBytesMax) as RequestOf<V>;
};

export const decodeResponse = <V extends UnaryVerb>(verb: V, bytes: Uint8Array): ResponseOf<V> =>
  decodeBounded(
    MESSAGES[verb].response,
    bytes,
    `the answer to ${verb}`,
    LIMITS.messageBytesMax,
  ) as ResponseOf<V>;

export const decodeEvent = (bytes: Uint8Array): StreamEvent =>
  decodeBounded(StreamEvent, bytes, 'an event', STREAM.documentBytesMax);

export const decodeCommand = (bytes: Uint8Array): StreamCommand =>
  decodeBounded(StreamCommand, bytes, 'a command', STREAM.documentBytesMax);

/** The refusal that a WireError document stands for. A code that this version does not know becomes 'protocol'. */
export const decodeWireError = (bytes: Uint8Array): XceError => {
  let wire: WireError;
  try {
    wire = decodeBounded(WireError, bytes, 'an error', STREAM.documentBytesMax);
  } catch (error) {
    if (!(error instanceof XceError)) throw error;
    const text = bytes.length > STREAM.documentBytesMax ? '' : Buffer.from(bytes).toString('utf8');
    return new XceError('protocol', `${error.message}: ${quoted(text)}`, { cause: error });
  }
  return new XceError(wire.code, received(wire.message), {
    ...(wire.at === undefined ? {} : { at: received(wire.at) }),
    ...(wire.unchanged === undefined ? {} : { unchanged: received(wire.unchanged) }),
    ...(wire.next === undefined ? {} : { next: received(wire.next) }),
    ...(wire.detail === undefined ? {} : { detail: wire.detail }),
  });
};

/** One JSON document. Throws 'too-large' over `bytesMax`. */
export const encodeDocument = (value: unknown, what: string, bytesMax: number): Buffer => {
  const bytes = Buffer.from(JSON.stringify(value));
  if (bytes.length > bytesMax) {
    throw new XceError('too-large', `${what} is ${bytes.length} bytes, over ${bytesMax}`);
  }
  return bytes;
};

/** What the peer is told of anything thrown: the code and one line; never a stack, a foreign message or a rule of ours. */
export const encodeError = (error: unknown): Buffer => {
  const known =
    error instanceof XceError && error.code !== 'bug'
      ? error
      : new XceError('bug', 'the worker broke one of its own rules; its journal has the rest');
  const { at, unchanged, next, detail } = known.facts;
  const line = (text: string) => text.slice(0, TEXT_CHARS_MAX);
  const core = { code: known.code, message: line(known.message) };
  const wire = {
    ...core,
    ...(at === undefined ? {} : { at: line(at) }),
    ...(unchanged === undefined ? {} : { unchanged: line(unchanged) }),
    ...(next === undefined ? {} : { next: line(next) }),
  };
  // What does not fit is left out, the least important first.
  for (const each of [detail === undefined ? wire : { ...wire, detail }, wire]) {
    const bytes = Buffer.from(JSON.stringify(each));
    if (bytes.length <= STREAM.documentBytesMax) return bytes;
  }
  return Buffer.from(JSON.stringify(core));
};

/** The HTTP status that repeats a code; clients look only for 200. */
export const statusOf = (code: ErrorCode): number => {
  switch (code) {
    case 'protocol':
      return 400;
    case 'tls':
    case 'peer-unknown':
    case 'peer-role':
      return 403;
    case 'timeout':
      return 408;
    case 'too-large':
      return 413;
    case 'bug':
      return 500;
    case 'worker-busy':
      return 503;
    default:
      return 409;
  }
};

/** The code of anything thrown. */
export const codeOf = (error: unknown): ErrorCode => (error instanceof XceError ? error.code : 'bug');
