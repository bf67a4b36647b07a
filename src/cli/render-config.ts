import { escapeText } from '../base/escape.ts';
import type { ConfigShown } from '../operations/config-show.ts';
import type { Bundle } from '../pki/authority.ts';
import type { Revocation } from '../pki/revocation.ts';
import { formatTable } from './print.ts';

export const renderConfig = ({ origins }: ConfigShown): string =>
  formatTable(
    ['SECTION', 'KEY', 'VALUE', 'FROM'],
    origins.map(({ section, key, value, from }) => [
      section,
      key,
      value === null ? '-' : escapeText(value),
      escapeText(from),
    ]),
  );

export const renderBundle = ({ files, validity }: Bundle): string =>
  `${files.map(escapeText).join('\n')}\nvalid until ${new Date(validity.notAfterMs).toISOString()}\n`;

export const renderRevocation = ({ list, revoked, total }: Revocation): string =>
  `${revoked.map((serial) => `${serial}\n`).join('')}${escapeText(list)}: ${total} revoked\n`;
