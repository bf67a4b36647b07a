import { expect, test } from 'vitest';
import { unitPath } from '../../../src/sandbox/systemd/systemd1.ts';

test('the object path of a unit escapes every byte that is no letter, and a digit at the start', () => {
  expect(unitPath('xce-main-7.42.0.anchor.service')).toBe(
    '/org/freedesktop/systemd1/unit/xce_2dmain_2d7_2e42_2e0_2eanchor_2eservice',
  );
  expect(unitPath('9a_b.slice')).toBe('/org/freedesktop/systemd1/unit/_39a_5fb_2eslice');
});
