/**
 * A JSON document with an Ed25519 signature, as one line of text:
 *
 *     PREFIX base64url(JSON) '.' base64url(signature over DOMAIN + JSON)
 *
 * The domain keeps a signature of one form from ever fitting another. There is one text for one document and
 * key: the JSON is what JSON.stringify makes of the claims in the order of the schema, and base64url has no
 * padding and no spare bits. The signature is checked before the JSON is parsed.
 */
import { createPublicKey, type KeyObject, sign, verify } from 'node:crypto';
import * as v from 'valibot';
import { assert, type ErrorCode, XceError } from '../base/errors.ts';
import {
  type Attempt,
  type Epoch,
  type InstanceName,
  type JobId,
  type LeaseNumber,
  type NodeName,
  parseInstanceName,
  parseJobId,
  parseNodeName,
  type Uid,
} from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import { accept, refuse, type Verdict } from './refusal.ts';

const SIGNATURE_BYTES = 64;

export type SignedForm<Claims> = {
  /** What it is called in messages. */
  readonly name: string;
  readonly prefix: string;
  readonly domain: string;
  readonly charsMax: number;
  /** Its input and output are the same values; entries in the order of the text. */
  readonly schema: v.GenericSchema<unknown, Claims> & {
    readonly entries: Readonly<Record<keyof Claims, unknown>>;
  };
  readonly malformed: ErrorCode;
  readonly badSignature: ErrorCode;
};

const named = <Name extends string>(parse: (text: string) => Name | undefined, kind: string) =>
  v.pipe(
    v.string(),
    v.check((text) => parse(text) === text, `not a ${kind}`),
    v.transform((text) => text as Name),
  );
const numbered = <Value extends number>(min: number, max: number) =>
  v.pipe(
    v.number(),
    v.safeInteger(),
    v.minValue(min),
    v.maxValue(max),
    v.transform((value) => value as Value),
  );

/** Claims that tickets and certificates share. */
export const CLAIM = {
  cluster: v.pipe(v.string(), v.minLength(1), v.maxLength(LIMITS.nodeNameCharsMax)),
  instance: named<InstanceName>(parseInstanceName, 'name of an instance'),
  job: named<JobId>(parseJobId, 'job id'),
  attempt: numbered<Attempt>(0, 999_999),
  lease: numbered<LeaseNumber>(1, Number.MAX_SAFE_INTEGER),
  epoch: numbered<Epoch>(1, Number.MAX_SAFE_INTEGER),
  uid: numbered<Uid>(1, 2_147_483_647),
  id: numbered<number>(1, 0xffff_ffff),
  node: named<NodeName>(parseNodeName, 'node name'),
  nonce: v.pipe(v.string(), v.regex(new RegExp(`^[0-9a-f]{${LIMITS.nonceBytes * 2}}$`))),
  bootId: v.pipe(v.string(), v.minLength(1), v.maxLength(LIMITS.bootIdBytesMax)),
  ttlMs: numbered<number>(1, LIMITS.ttlMsMax),
  wallMs: numbered<number>(0, Number.MAX_SAFE_INTEGER),
  path: v.pipe(v.string(), v.maxLength(LIMITS.pathBytesMax), v.regex(/^\/[^\0]*$/)),
} as const;

const signedBytes = (form: { readonly domain: string }, json: Uint8Array): Buffer =>
  Buffer.concat([Buffer.from(form.domain, 'latin1'), json]);

const requireForm = <Claims>(
  schema: v.GenericSchema<unknown, Claims>,
  claims: Claims,
  name: string,
): Claims => {
  const checked = v.safeParse(schema, claims);
  assert(checked.success, `a signed ${name} is well-formed`);
  return checked.output;
};

const requireSigningKey = (form: { readonly name: string }, key: KeyObject): void =>
  assert(
    key.asymmetricKeyType === 'ed25519' && key.type === 'private',
    `the key of a ${form.name} is Ed25519`,
  );

/** `"name":value`, as JSON.stringify writes it inside an object. */
const jsonOf = (name: string, value: unknown): string => `${JSON.stringify(name)}:${JSON.stringify(value)}`;

const signatureOf = (form: { readonly domain: string }, json: Buffer, key: KeyObject): string =>
  sign(null, signedBytes(form, json), key).toString('base64url');

const joinText = <Claims>(form: SignedForm<Claims>, json: Buffer, signature: string): string => {
  const text = `${form.prefix}${json.toString('base64url')}.${signature}`;
  if (text.length > form.charsMax) {
    throw new XceError(
      'too-large',
      `a ${form.name} is ${text.length} characters, over ${form.charsMax}: its names are too long together`,
    );
  }
  return text;
};

/** Signs claims. Claims that the schema refuses are a bug of the caller. Throws 'too-large' for a text over its limit. */
export const sealText = <Claims extends object>(
  form: SignedForm<Claims>,
  claims: Claims,
  key: KeyObject,
): string => {
  requireSigningKey(form, key);
  const checked = requireForm(form.schema, claims, form.name);
  const names = Object.keys(form.schema.entries) as (keyof Claims & string)[];
  const json = Buffer.from(`{${names.map((name) => jsonOf(name, checked[name])).join(',')}}`);
  return joinText(form, json, signatureOf(form, json, key));
};

/**
 * The same for texts that differ only in some claims. What they share is checked and written once, and may be long; of
 * a text that was asked for its signature is kept.
 */
export const createSealer = <Shared extends object, Own extends object>(
  form: SignedForm<Shared & Own>,
  sharedSchema: v.GenericSchema<unknown, Shared>,
  ownSchema: v.GenericSchema<unknown, Own>,
  claims: Shared,
  key: KeyObject,
): ((own: Own) => string) => {
  requireSigningKey(form, key);
  const written = new Map(
    Object.entries(requireForm(sharedSchema, claims, form.name)).map(([name, value]) => [
      name,
      jsonOf(name, value),
    ]),
  );
  const names = Object.keys(form.schema.entries);
  const signatures = new Map<string, string>();
  return (own) => {
    const checked = requireForm(ownSchema, own, form.name);
    const values = new Map<string, unknown>(Object.entries(checked));
    const members = names.map((name) => written.get(name) ?? jsonOf(name, values.get(name)));
    const json = Buffer.from(`{${members.join(',')}}`);
    const which = JSON.stringify(checked);
    const signature = signatures.get(which) ?? signatureOf(form, json, key);
    signatures.set(which, signature);
    return joinText(form, json, signature);
  };
};

/** Buffer.from skips what is not base64url; only a text that comes back from the bytes is one. */
const decodeBase64url = (text: string): Buffer | undefined => {
  const bytes = Buffer.from(text, 'base64url');
  return bytes.toString('base64url') === text ? bytes : undefined;
};

const parseJson = (text: string): unknown => {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
};

/** Checks the form, the signature and the claims of a text, in this order. */
export const openText = <Claims>(form: SignedForm<Claims>, text: string, key: KeyObject): Verdict<Claims> => {
  assert(key.asymmetricKeyType === 'ed25519', `the key of a ${form.name} is Ed25519`);
  const malformed = (problem: string) =>
    refuse(form.malformed, `the ${form.name} cannot be read: ${problem}`);
  if (text.length > form.charsMax) return malformed(`it is longer than ${form.charsMax} characters`);
  if (!text.startsWith(form.prefix)) return malformed(`it does not begin with ${form.prefix}`);
  const [jsonText, signatureText, ...rest] = text.slice(form.prefix.length).split('.', 3);
  if (jsonText === undefined || signatureText === undefined || rest.length > 0)
    return malformed('it does not have two parts');
  const json = decodeBase64url(jsonText);
  const signature = decodeBase64url(signatureText);
  if (json === undefined || signature?.length !== SIGNATURE_BYTES) return malformed('it is not base64url');
  if (!verify(null, signedBytes(form, json), key, signature))
    return refuse(form.badSignature, `the signature of the ${form.name} does not verify`);
  const parsed = v.safeParse(form.schema, parseJson(json.toString()));
  if (!parsed.success) return malformed('its claims are not those of this version');
  if (!Buffer.from(JSON.stringify(parsed.output)).equals(json)) return malformed('its JSON has another form');
  return accept(parsed.output);
};

/** A raw Ed25519 public key, as workers send it, for use with node:crypto. */
export const publicKeyOfHex = (hex: string): KeyObject => {
  assert(new RegExp(`^[0-9a-f]{${LIMITS.workerKeyBytes * 2}}$`).test(hex), 'a raw key is 32 bytes in hex');
  return createPublicKey({
    key: { kty: 'OKP', crv: 'Ed25519', x: Buffer.from(hex, 'hex').toString('base64url') },
    format: 'jwk',
  });
};

/** The raw bytes of an Ed25519 key's public half, in hex. */
export const hexOfPublicKey = (key: KeyObject): string => {
  const { x } = (key.type === 'private' ? createPublicKey(key) : key).export({ format: 'jwk' });
  assert(typeof x === 'string', 'an Ed25519 key has a public half');
  return Buffer.from(x, 'base64url').toString('hex');
};
