/** How a node says that it is not clean. */
import { messageOf, XceError } from '../base/errors.ts';
import type { Finding } from '../sandbox/backend.ts';

/** Findings that an answer names; the rest is counted. */
const FINDINGS_SHOWN_MAX = 32;
const FINDING_CHARS_MAX = 300;

/** A look or an end that failed proves nothing, which is as bad as something found. */
export const unknownFinding = (what: string, error: unknown): Finding => ({
  kind: 'unknown',
  detail: `${what}: ${messageOf(error)}`,
});

export const dirtyError = (lease: number, findings: readonly Finding[]): XceError => {
  const shown = findings.slice(0, FINDINGS_SHOWN_MAX).map((finding) => ({
    kind: finding.kind,
    detail: finding.detail.slice(0, FINDING_CHARS_MAX),
  }));
  const [first] = shown;
  const more = findings.length > 1 ? ` and ${findings.length - 1} more` : '';
  return new XceError(
    'node-dirty',
    `lease ${lease}: ${first === undefined ? 'something is left' : `${first.kind} ${first.detail}`}${more}`,
    { detail: { findings: shown, count: findings.length } },
  );
};
