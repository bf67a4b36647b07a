/**
 * Names and numbers that must not be mixed up, as branded types with one parser each. A parser returns the
 * value or undefined; the caller knows where the text came from and makes the error.
 */
import { LIMITS } from './limits.ts';

declare const brand: unique symbol;
type Brand<T, B extends string> = T & { readonly [brand]: B };

/** A job id exactly as the batch system wrote it. Never a number (64-bit ids lose digits in doubles). */
export type JobId = Brand<string, 'JobId'>;
/** Counts the requeues of a job from 0. */
export type Attempt = Brand<number, 'Attempt'>;
/** An execution uid, and the gid of the same number. */
export type Uid = Brand<number, 'Uid'>;
/** Serial number of a lease within one lease log, from 1. Never reused. */
export type LeaseNumber = Brand<number, 'LeaseNumber'>;
/** Fencing number of a controller, from 1; also the number in the name of its log file. */
export type Epoch = Brand<number, 'Epoch'>;
/** Name of a node: lower-case DNS labels. */
export type NodeName = Brand<string, 'NodeName'>;
/** Name of an instance (a domain of its own); the top one is usually `main`. */
export type InstanceName = Brand<string, 'InstanceName'>;

/**
 * What a section of the configuration may be called, for a storage root or an environment: it cannot be mistaken for a
 * section of ini, and fits into a ticket.
 */
export const SECTION_NAME = /^[a-z][a-z0-9_-]{0,31}$/;

const decimal = (text: string, max: number): number | undefined => {
  if (!/^(0|[1-9][0-9]{0,15})$/.test(text)) return undefined;
  const value = Number(text);
  return value <= max ? value : undefined;
};

/** Printable bytes without blanks; brackets, dots, plus and underscore occur in real ids (PBS, Slurm, Flux). */
export const parseJobId = (text: string): JobId | undefined =>
  /^[\x21-\x7e]+$/.test(text) && text.length <= LIMITS.jobIdBytesMax ? (text as JobId) : undefined;

export const parseAttempt = (text: string): Attempt | undefined =>
  decimal(text, 999_999) as Attempt | undefined;

/** Decimal digits only, no sign, no leading zero: any other notation has been read as another uid somewhere. */
export const parseUid = (text: string): Uid | undefined => {
  const value = /^[1-9][0-9]{0,9}$/.test(text) ? Number(text) : 0;
  return value >= 1 && value <= 2_147_483_647 ? (value as Uid) : undefined;
};

export const parseLeaseNumber = (text: string): LeaseNumber | undefined => {
  const value = decimal(text, Number.MAX_SAFE_INTEGER);
  return value === undefined || value < 1 ? undefined : (value as LeaseNumber);
};

/** RFC 1123 labels, kept digit for digit, folded to lower case because host names compare that way. */
export const parseNodeName = (text: string): NodeName | undefined => {
  const name = text.toLowerCase();
  if (name.length > LIMITS.nodeNameCharsMax) return undefined;
  const label = /^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$/;
  return name.split('.').every((part) => label.test(part)) ? (name as NodeName) : undefined;
};

export const parseInstanceName = (text: string): InstanceName | undefined =>
  /^[a-z][a-z0-9_]*$/.test(text) && text.length <= LIMITS.instanceCharsMax
    ? (text as InstanceName)
    : undefined;
