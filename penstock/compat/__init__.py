"""The import alias that `penstock run` uses: `import tensorflow` gives penstock.

>>> from penstock.compat import alias
>>> alias.install()
>>> import tensorflow.compat.v1 as tf
>>> tf.__version__
'1.15.0'
>>> alias.uninstall()
"""
