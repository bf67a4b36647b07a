/** The file in a box that says which sandbox it is: how a node knows its own units from foreign ones. */
import { createHash } from 'node:crypto';
import { XceError } from '../../base/errors.ts';
import type { Network } from '../../config/values.ts';
import { replaceFile } from '../../os/files.ts';
import { readFileIfThere } from '../../os/root-files.ts';
import type { SandboxSpec } from '../backend.ts';
import type { BoxPaths } from '../box.ts';
import type { Allowance } from '../resources.ts';

/** Most of it is the addresses of a large job. */
const MARKER_BYTES_MAX = 8 << 20;

/** What the sandbox was made with, which its steps are made with as well. */
export type Making = {
  readonly allowance: Allowance;
  /** null: the network is open. */
  readonly network: readonly Network[] | null;
};

/** `invocationId` is null until the anchor has been checked: a sandbox whose making was cut short. */
export type Marker = Making & { readonly digest: string; readonly invocationId: string | null };

/** Everything of a specification that makes two sandboxes different. The epoch is not: a new controller
 * goes on with the sandboxes of the old one. */
export const digestOf = (spec: SandboxSpec, allowance: Allowance): string => {
  const { instance, job, attempt, lease, uid, node, nodes, writablePaths, workspaceRoot } = spec;
  return createHash('sha256')
    .update(
      JSON.stringify([
        ...[instance, job, attempt, lease, uid, node, nodes, writablePaths, workspaceRoot],
        allowance,
      ]),
    )
    .digest('hex');
};

export const writeMarker = (box: BoxPaths, marker: Marker): void => {
  replaceFile(box.marker, Buffer.from(`${JSON.stringify(marker)}\n`), 0o600);
};

const isMarker = (value: unknown): value is Marker =>
  typeof value === 'object' &&
  value !== null &&
  'digest' in value &&
  typeof value.digest === 'string' &&
  'invocationId' in value &&
  (value.invocationId === null || typeof value.invocationId === 'string') &&
  'allowance' in value &&
  typeof value.allowance === 'object' &&
  value.allowance !== null &&
  'network' in value &&
  (value.network === null || Array.isArray(value.network));

/** Undefined where there is none. Throws XceError 'sandbox-exists' for a file that we did not write. */
export const readMarker = (box: BoxPaths): Marker | undefined => {
  const bytes = readFileIfThere(box.marker, MARKER_BYTES_MAX);
  if (bytes === undefined) return undefined;
  try {
    const value: unknown = JSON.parse(bytes.toString('utf8'));
    if (isMarker(value)) return value;
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
  }
  throw new XceError('sandbox-exists', `${box.marker} is not what this worker writes`, { at: box.marker });
};
