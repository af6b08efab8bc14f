"""The key stream of ChaCha20 is that of RFC 8439, in and out of compiled functions."""

from cryptography.hazmat.primitives.ciphers import algorithms, Cipher
import numpy as np
import pytest
import tensorflow as tf

from tfcactus.keras.noise import chacha20

_KEY = bytes(range(32))


def _stream(key, nonce, first, count):
  """Returns the bytes of successive blocks."""
  words = chacha20.words(
      tf.constant(np.frombuffer(key, '<u4')),
      tf.unstack(tf.constant(np.frombuffer(nonce, '<u4'))),
      tf.constant(first, tf.uint32), count)
  return tf.stack(words, 1).numpy().astype('<u4').tobytes()


@pytest.mark.parametrize('key, nonce, block, expected', [
    # RFC 8439, section 2.3.2.
    (_KEY, '000000090000004a00000000', 1,
     '10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e'
     'd2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e'),
    # Appendix A.1, test vectors 1 to 5.
    (bytes(32), '00' * 12, 0,
     '76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7'
     'da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586'),
    (bytes(32), '00' * 12, 1,
     '9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed'
     '29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f'),
    (bytes(31) + b'\1', '00' * 12, 1,
     '3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a'
     '8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0'),
    (b'\0\xff' + bytes(30), '00' * 12, 2,
     '72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca'
     '13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096'),
    (bytes(32), '00' * 11 + '02', 0,
     'c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7'
     '8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d')])
def test_blocks_are_those_of_rfc_8439(key, nonce, block, expected):
  assert _stream(key, bytes.fromhex(nonce), block, 1).hex() == expected


@pytest.mark.parametrize('compiled', [False, True])
def test_many_blocks_are_those_of_another_implementation(compiled):
  rng = np.random.default_rng(0)
  for first in (77, 2**32 - 40):
    key, nonce = rng.bytes(32), rng.bytes(12)
    made = tf.function(
        lambda key, nonce, first: tf.stack(
            chacha20.words(key, tf.unstack(nonce, 3), first, 40), 1),
        jit_compile=compiled)(*(tf.constant(each) for each in (
            np.frombuffer(key, '<u4'), np.frombuffer(nonce, '<u4'), np.uint32(first))))
    start = np.uint32(first).astype('<u4').tobytes()
    expected = Cipher(algorithms.ChaCha20(key, start + nonce), None).encryptor().update(
        bytes(64 * 40))
    assert made.numpy().astype('<u4').tobytes() == expected
