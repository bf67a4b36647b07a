import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { LIMITS } from '../../../src/base/limits.ts';
import { KEYS, type Key, STORAGE_KEYS } from '../../../src/config/keys.ts';
import { decodeText, MINIMAL, refusalOf } from './sample.ts';

const fileOf = (name: string): string => fileURLToPath(new URL(`../../../${name}`, import.meta.url));
const MAN = 'man/xce-sandbox.ini.5';
const man = readFileSync(fileOf(MAN), 'utf8');
const example = readFileSync(fileOf('share/xce-sandbox.ini.example'), 'utf8');

/** Lines `section key type default`, as the table of keys has them. */
const decoderKeys = [
  ...Object.entries<Readonly<Record<string, Key<unknown>>>>(KEYS),
  ['storage NAME', STORAGE_KEYS] as const,
]
  .flatMap(([section, keys]) =>
    Object.entries(keys).map(([key, { type, fallback }]) => {
      const otherwise = typeof fallback === 'object' ? `default ${fallback.text || 'empty'}` : fallback;
      return `[${section}] ${key} = ${type} (${otherwise})`;
    }),
  )
  .toSorted();

const manKeys = (): readonly string[] => {
  let section = '';
  return man
    .split('\n')
    .flatMap((line) => {
      section = /^\.Ss (\[.*\]) section$/.exec(line)?.[1] ?? (line.startsWith('.Sh ') ? '' : section);
      const [, key, type, otherwise] = /^\.It Cm (\S+) No = Ar (.*) Pq (.*)$/.exec(line) ?? [];
      return key === undefined || section === '' ? [] : [`${section} ${key} = ${type} (${otherwise})`];
    })
    .toSorted();
};

describe('the man page', () => {
  test('names exactly the keys that the decoder knows, with their types and defaults', () => {
    expect(manKeys()).toEqual(decoderKeys);
  });

  test('its smallest configuration is accepted', () => {
    const literal = /\.Bd -literal -offset indent\n(\[cluster\][^.]*)\.Ed/.exec(man)?.[1] ?? '';
    expect(refusalOf(literal)).toEqual({ code: 'accepted', message: '' });
    expect(literal.match(/^\S+ =/gm)).toEqual(MINIMAL.match(/^\S+ =/gm));
  });

  test('names the bounds that the decoder has', () => {
    expect(man).toContain(`At most ${LIMITS.nodesMax} names`);
    expect(man).toContain(`There may be ${LIMITS.leaseRootsMax} such sections`);
    expect(refusalOf(`${MINIMAL}[worker]\nrun_directory = /${'x'.repeat(57)}\n`).code).toBe('accepted');
    expect(refusalOf(`${MINIMAL}[worker]\nrun_directory = /${'x'.repeat(58)}\n`).code).toBe('config-value');
    expect(man).toContain('at most 58 bytes long');
  });

  test.each(
    [...man.matchAll(/^([0-9]+(?:ms|s|d)?) to ([0-9]+[smhd]?)\.$/gm)].map(([, low, high]) => [low, high]),
  )('the bounds %s to %s stand behind a key that has them', (low, high) => {
    const before = man.slice(0, man.indexOf(`\n${low} to ${high}.\n`));
    const key = before.slice(before.lastIndexOf('.It Cm ')).split(' ')[2] ?? '';
    const keys = Object.values<Readonly<Record<string, Key<unknown>>>>(KEYS).find((table) =>
      Object.hasOwn(table, key),
    );
    const parse = keys?.[key]?.parse;
    expect(parse?.(low ?? '')).toHaveProperty('value');
    expect(parse?.(high ?? '')).toHaveProperty('value');
    const beyond = (high ?? '').replace(/^[0-9]+/, (digits) => String(Number(digits) + 1));
    expect(parse?.(beyond)).toHaveProperty('reason');
  });

  test.skipIf(!existsSync('/usr/bin/mandoc'))('has nothing for mandoc to complain about', () => {
    const lint = (): string => {
      try {
        return execFileSync('/usr/bin/mandoc', ['-T', 'lint', '-W', 'style', fileOf(MAN)], {
          encoding: 'utf8',
        });
      } catch (error) {
        return error instanceof Error && 'stdout' in error ? String(error.stdout) : String(error);
      }
    };
    // Our other pages are not installed where this runs.
    const complaints = lint()
      .split('\n')
      .filter((line) => line !== '' && !line.includes('referenced manual not found'));
    expect(complaints).toEqual([]);
  });
});

describe('the example file', () => {
  test('is accepted', () => {
    const { settings } = decodeText(example);
    expect(settings.pool).toEqual({ first: 70_000, last: 79_999 });
    expect(settings.nodes.hosts).toHaveLength(144);
    expect(settings.storage.map(({ name, workspace }) => [name, workspace])).toEqual([
      ['scratch', '/scratch/xce'],
      ['project', undefined],
    ]);
  });

  test('shows every key but the name of the node, which differs from host to host', () => {
    const shown = decodeText(example)
      .origins.filter(
        ({ from, section }) =>
          from !== 'default' &&
          from !== 'host name' &&
          !['storage project', 'environment openmpi-5'].includes(section),
      )
      .map(({ section, key }) => `[${section.replace('storage scratch', 'storage NAME')}] ${key}`);
    const known = decoderKeys
      .map((line) => line.replace(/ = .*$/, ''))
      .filter((name) => name !== '[worker] node');
    expect(shown.toSorted()).toEqual(known.toSorted());
  });
});
