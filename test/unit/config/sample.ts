/** The smallest configuration that is accepted, and ways to change it. */
import { type DecodedConfig, decodeConfig } from '../../../src/config/decode.ts';

export const FILE = '/etc/xce-sandbox/xce-sandbox.ini';

export const MINIMAL = `[cluster]
name = hpc
[pool]
range = 70000-79999
[directory]
control_uid = 1001
[lease]
directory = /srv/xce-lease
[nodes]
hosts = n[1-3]
`;

export const decodeText = (text: string): DecodedConfig => decodeConfig(Buffer.from(text), FILE, 'n1');

/** The minimal file with one line exchanged, or with lines added at the end. */
export const withLine = (from: string, to: string): string => {
  if (!MINIMAL.includes(`${from}\n`)) throw new Error(`no line ${from}`);
  return MINIMAL.replace(`${from}\n`, `${to}\n`);
};

/** Code and message of the refusal, or what was accepted. */
export const refusalOf = (text: string | Buffer): { readonly code: string; readonly message: string } => {
  try {
    decodeConfig(Buffer.from(text), FILE, 'n1');
  } catch (error) {
    if (error instanceof Error && 'code' in error)
      return { code: String(error.code), message: error.message };
    throw error;
  }
  return { code: 'accepted', message: '' };
};
